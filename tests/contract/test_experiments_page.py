"""experiments/README.md lists the experiments' commands, and each command has help."""

import re
import runpy
import sys
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "experiments"
COMMAND = re.compile(r"python -m ([\w.]+)")
SCRIPTS = [path for path in FOLDER.rglob("*.py") if '__name__ == "__main__"' in path.read_text()]
MODULES = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__") for path in SCRIPTS}


def test_the_page_of_experiments_lists_every_command() -> None:
    named = set(COMMAND.findall((FOLDER / "README.md").read_text()))
    studies = {module for module in MODULES if module.startswith("experiments.paper.")}
    assert MODULES - studies == named - studies
    assert named & studies


@pytest.mark.parametrize("module", sorted(MODULES))
@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
def test_a_command_prints_help_and_starts_nothing(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [module, "--help"])
    before = psutil.Process().children()
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(module, run_name="__main__")
    assert ended.value.code == 0
    assert "usage" in capsys.readouterr().out.lower()
    assert psutil.Process().children() == before
