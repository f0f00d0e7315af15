"""The registry of policies."""

import subprocess
import sys

import pytest

from services.scheduler.policies.paper import PaperPolicy
from services.scheduler.registry import POLICIES, find_policy
from services.scheduler.settings import SchedulerSettings
from shared.errors import BadInput
from shared.settings import read_settings, removed_variables
from tests.builders import arrival
from tests.support.scripted_cell import make_cell


@pytest.mark.parametrize("name", POLICIES)
def test_every_registered_policy_serves_a_request(name: str) -> None:
    cell = make_cell({"a-1": 1}, policy=name)
    cell.serve(cell.send(arrival("r")))
    assert len(cell.finished) == 1


def test_an_unknown_name_is_refused_with_the_accepted_names() -> None:
    with pytest.raises(BadInput, match="'nope'; accepted: dilaserve, paper, "):
        find_policy("nope")
    with pytest.raises(BadInput, match=r"DILASERVE_POLICY='nope'.*accepted: .*, paper"):
        read_settings(SchedulerSettings, {"DILASERVE_MODEL": "m", "DILASERVE_POLICY": "nope"})


def test_removed_variables_are_named_and_change_nothing() -> None:
    old = {"DILASERVE_MODEL": "m", "DILASERVE_MOVES": "any", "DILASERVE_LOAD_CONTROL": "false"}
    assert read_settings(SchedulerSettings, old) == SchedulerSettings(model="m")
    assert removed_variables(SchedulerSettings, old) == ["DILASERVE_LOAD_CONTROL", "DILASERVE_MOVES"]


@pytest.mark.parametrize(("environ", "margin_steps"), [({}, 0.0), ({"DILASERVE_MARGIN_STEPS": "1"}, 1.0)])
def test_the_papers_policy_has_no_margin_unless_the_settings_name_one(
    environ: dict[str, str], margin_steps: float
) -> None:
    settings = read_settings(SchedulerSettings, {"DILASERVE_MODEL": "m", **environ})
    policy = make_cell({}, policy="paper", margin_steps=settings.margin_steps).core.policy
    assert isinstance(policy, PaperPolicy)
    assert policy.margin_steps == margin_steps


def test_a_command_line_starts_without_numpy() -> None:
    """The commands name the policies in their help."""
    code = "import sys; from dilaserve.cli import build_app; build_app(); sys.exit('numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
