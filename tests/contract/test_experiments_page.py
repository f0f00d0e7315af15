"""experiments/README.md lists the experiments' commands."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "experiments"
COMMAND = re.compile(r"python -m ([\w.]+)")


def test_the_page_of_experiments_lists_every_command() -> None:
    named = set(COMMAND.findall((FOLDER / "README.md").read_text()))
    scripts = [path for path in FOLDER.rglob("*.py") if '__name__ == "__main__"' in path.read_text()]
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__") for path in scripts}
    studies = {module for module in modules if module.startswith("experiments.paper.")}
    assert modules - studies == named - studies
    assert named & studies
