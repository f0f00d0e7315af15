"""The example of docs/adding-a-policy.md: registered, simulated and compared."""

import re
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from experiments.paper.files import PROFILE, STEPS
from services.scheduler.registry import POLICIES, PolicyEntry
from services.scheduler.settings import SchedulerSettings
from shared.profile import read_profile
from simulator.result import Records
from simulator.scenario import PredictorName, Scenario, simulate
from simulator.steps_table import read_steps
from simulator.workload import make_trace

PAGE = Path(__file__).parents[3] / "docs" / "adding-a-policy.md"
NAME = "two-thresholds"


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's code as a module, and its entry in the registry."""
    [code] = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    module = ModuleType("example_policy")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(code, str(PAGE), "exec"), module.__dict__)  # noqa: S102  (the page's own code)
    entry = PolicyEntry(policy="example_policy:TwoThresholdPolicy", uses_estimates=True, needs_profile=True)
    monkeypatch.setitem(POLICIES, NAME, entry)


@cache
def run(policy: str, predictor: PredictorName) -> Records:
    """Sixty requests in 48 seconds, more than one instance serves at the highest threshold."""
    workload = make_trace(np.arange(60, dtype=np.float64) * 0.8, np.full(60, 600), np.full(60, 256))
    settings = SchedulerSettings(model="m", policy=policy, cache="dual")
    scenario = Scenario(
        profile=read_profile(PROFILE),
        steps=read_steps(STEPS),
        instances=(1,),
        settings=settings,
        predictor=predictor,
        slo_s=8.0,
    )
    return simulate(scenario, workload)


@pytest.mark.parametrize("predictor", ["oracle", "one-shot"])
def test_the_example_meets_more_slos_than_a_fixed_threshold(predictor: PredictorName) -> None:
    example, fixed = run(NAME, predictor), run("infaas", "none")
    assert example.completed.all()
    assert 0.5 < example.mean_threshold.mean() < 0.9
    assert example.met.mean() > fixed.met.mean() + 0.5


def test_a_policy_of_any_name_gets_the_predictors_answers() -> None:
    """Estimates that know the true difficulty lead to other decisions."""
    assert run(NAME, "oracle").latency_s.tolist() != run(NAME, "one-shot").latency_s.tolist()
