"""The reconfigurator finds the files that its settings name."""

from pathlib import Path

from services.reconfigurator.__main__ import read_reconfiguration
from services.reconfigurator.settings import ReconfiguratorSettings
from shared.messages.cell import DEFAULT_THRESHOLDS

DEMO = Path(__file__).parents[3] / "models" / "demo"


def test_the_step_predictor_is_that_of_the_model() -> None:
    config = read_reconfiguration(ReconfiguratorSettings(model=str(DEMO)))
    assert set(config.planner.prior) == set(DEFAULT_THRESHOLDS)


def test_a_model_needs_no_step_predictor(tmp_path: Path) -> None:
    assert not read_reconfiguration(ReconfiguratorSettings(model=str(tmp_path))).planner.prior
