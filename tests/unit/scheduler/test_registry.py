"""The registry of policies."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from services.scheduler.policies.paper import PaperPolicy
from services.scheduler.registry import POLICIES, find_policy, installed_policies
from services.scheduler.settings import SchedulerSettings
from shared.errors import BadInput
from shared.settings import read_settings, removed_variables
from tests.support.scripted_cell import make_cell


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
    code = "import sys; from dilaserve.cli import build_app; build_app([]); sys.exit('numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


ENTRY = "from services.scheduler.registry import PolicyEntry\nENTRY = PolicyEntry(policy={policy!r})\n"
FIXED = "services.scheduler.policies.fixed:FixedThresholdPolicy"


def install(directory: Path, point: str, module: str) -> None:
    """A package with one entry point, as pip installs it."""
    (directory / "own_policy.py").write_text(module)
    metadata = directory / "own_policy-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: own-policy\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[dilaserve.policies]\n{point}\n")


def test_a_policy_of_an_installed_package_is_one_of_all(tmp_path: Path) -> None:
    install(tmp_path, "own = own_policy:ENTRY", ENTRY.format(policy=FIXED))
    code = (
        "from services.scheduler.registry import find_policy;"
        "from services.scheduler.settings import SchedulerSettings;"
        "from services.scheduler.factory import build_policy; from shared.settings import read_settings;"
        "from experiments.policies.rows import SYSTEMS;"
        "read_settings(SchedulerSettings, {'DILASERVE_MODEL': 'm', 'DILASERVE_POLICY': 'own'});"
        "print(find_policy('own').policy, SYSTEMS['own'].settings['policy'])"
    )
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    shown = subprocess.run([sys.executable, "-c", code], check=True, env=environ, capture_output=True, text=True)
    assert shown.stdout.split() == [FIXED, "own"]


@pytest.mark.parametrize(
    ("point", "module", "reason"),
    [
        ("own = no_such_module:ENTRY", "", "dilaserve.policies cannot be loaded: No module named"),
        ("own = own_policy:ENTRY", "", "cannot be loaded: module 'own_policy' has no attribute 'ENTRY'"),
        ("own = own_policy:ENTRY", "ENTRY = 1", "is a int; accepted: a PolicyEntry"),
        ("paper = own_policy:ENTRY", ENTRY.format(policy=FIXED), "another policy has this name"),
    ],
)
def test_a_wrong_entry_point_is_refused_by_name(
    point: str, module: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, point, module)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_policy", raising=False)
    with pytest.raises(BadInput, match=re.escape(reason)):
        installed_policies(POLICIES)
    monkeypatch.delitem(sys.modules, "own_policy", raising=False)
