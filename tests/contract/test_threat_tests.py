"""Every test that docs/security.md names exists, and every threat has one."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINES = (ROOT / "docs/security.md").read_text(encoding="utf-8").splitlines()
NAMED = re.compile(r"`((?:[\w./]*\.py)?)(?:::(test_\w+))?`")
FOLDERS = {"test in `tests/integration/gateway/`": ROOT / "tests/integration/gateway", "test": ROOT}


def functions_of(path: Path) -> set[str]:
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def threats() -> Iterator[tuple[str, Path, str]]:
    """The last column of each row of a table of threats, with the folder that its paths begin in."""
    folder = None
    for line in LINES:
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if not cells or cells[0] == "threat":
            folder = FOLDERS[cells[-1]] if cells else None
        elif folder is not None and not set(line) <= set("|- "):
            yield cells[0], folder, cells[-1]


def test_every_threat_names_a_test_that_exists() -> None:
    found = list(threats())
    assert len(found) > 40
    for threat, folder, column in found:
        named, path = NAMED.findall(column), folder
        assert named, f"no test: {threat}"
        for file, name in named:
            path = (folder / file).resolve() if file else path
            assert path.is_file(), f"{threat}: {file}"
            assert not name or name in functions_of(path), f"{threat}: {name} is not in {path.name}"
