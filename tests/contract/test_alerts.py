"""Each alert fires on its fault and stays quiet while the cell serves, by Prometheus's own evaluation."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

CASES = Path(__file__).parent / "alerts.test.yml"
ALERTS = re.findall(r"- alert: (\w+)", (Path(__file__).parents[2] / "compose/alerts.yml").read_text())


@pytest.mark.parametrize("alert", ALERTS)
def test_the_cases_have_a_fault_for_each_alert(alert: str) -> None:
    quiet, firing = CASES.read_text().split("  - name: no scheduler leads")
    assert alert in quiet
    assert alert in firing


def test_alerts_fire_on_their_fault_only() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("needs promtool: apt install prometheus")
    run = subprocess.run([promtool, "test", "rules", CASES], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
