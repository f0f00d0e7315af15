"""The dashboard and the alerts use exported metrics, alerts fire on their fault, and a page lists every metric."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.metrics import exported

ROOT = Path(__file__).parents[2]
NAME = re.compile(r"\b(?:dilaserve|process)_\w+")
ROW = re.compile(r"^\| `((?:dilaserve_|vllm:)\w+)` \| (\w+) \|", re.MULTILINE)
OF_EVERY_PROCESS = {"process_start_time_seconds"}  # exported by Prometheus's client
SAMPLES = {sample for family in exported() for sample in family.samples} | OF_EVERY_PROCESS
PANELS = json.loads((ROOT / "compose/grafana/dilaserve.json").read_text())["panels"]
QUERIES = [target["expr"] for panel in PANELS for target in panel.get("targets", ())]
RULES = (ROOT / "compose/alerts.yml").read_text()
EXPRESSIONS = re.findall(r"^        expr: (?:>\n)?((?:.|\n)*?)\n        for:", RULES, re.M)
ALERTS = re.findall(r"- alert: (\w+)", RULES)
CASES = Path(__file__).parent / "alerts.test.yml"


@pytest.mark.parametrize("expression", [*QUERIES, *EXPRESSIONS])
def test_a_query_uses_exported_metrics_only(expression: str) -> None:
    names = set(NAME.findall(expression))
    assert names
    assert names <= SAMPLES


def test_every_alert_is_parsed() -> None:
    assert len(EXPRESSIONS) == len(ALERTS)


def test_panels_have_distinct_places_and_titles() -> None:
    cells = [
        (x, y)
        for at in (panel["gridPos"] for panel in PANELS)
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(cells) == len(set(cells))
    assert len({panel["id"] for panel in PANELS}) == len({panel["title"] for panel in PANELS}) == len(PANELS)
    assert max(x for x, _ in cells) < 24


def test_the_telemetry_page_lists_every_metric_with_its_type() -> None:
    listed = dict(ROW.findall((ROOT / "docs/telemetry.md").read_text()))
    assert listed == {family.name: family.kind for family in exported()}


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
