"""A profile is measured with a warning where the machine computes something else at the same time."""

import io
import os
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import Progress

from dilaserve.profiling import measure_degrees
from services.worker.model.model_loading import ModelChoice
from services.worker.profile.profiler import ProfilePlan
from tests.support.tiny_model import write_tiny_model, write_tiny_weights


@pytest.mark.parametrize(("load", "is_busy"), [(0.1, False), (999.0, True)])
def test_a_busy_machine_is_named(
    *, load: float, is_busy: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    model = write_tiny_weights(write_tiny_model(tmp_path / "model"))
    printed = io.StringIO()
    with Progress(console=Console(file=printed), disable=True) as progress:
        [(profile, _)] = measure_degrees(ModelChoice(str(model), threads=1), [1], ProfilePlan((32,), 1), progress)
    assert profile.rows
    assert ("the machine is busy (load 999.0" in printed.getvalue()) == is_busy
