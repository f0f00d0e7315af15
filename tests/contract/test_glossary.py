"""Every name of the code in docs/glossary.md exists."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| ([^|]+) \| [^|]+ \| `([\w.]+)` in `([\w/.]+)` \|", re.MULTILINE)
PAGE = (ROOT / "docs/glossary.md").read_text()
ROWS = ROW.findall(PAGE)


def names_in(body: list[ast.stmt]) -> dict[str, list[ast.stmt]]:
    """Classes, functions and variables of a body, each with its own body."""
    names: dict[str, list[ast.stmt]] = {}
    for node in body:
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                names[node.name] = node.body
            case ast.AnnAssign(target=ast.Name(id=name)):
                names[name] = []
            case ast.Assign(targets=targets):
                names |= {target.id: [] for target in targets if isinstance(target, ast.Name)}
    return names


@pytest.mark.parametrize(("term", "name", "path"), ROWS, ids=[term for term, _, _ in ROWS])
def test_the_name_of_a_term_exists(term: str, name: str, path: str) -> None:
    body = ast.parse((ROOT / path).read_text()).body
    for part in name.split("."):
        known = names_in(body)
        assert part in known, f"{term}: {path} has no {name}"
        body = known[part]


def test_every_term_is_listed_once_with_a_name() -> None:
    terms = [line.split("|")[1].strip() for line in PAGE.splitlines() if re.match(r"\| (?!term|---)", line)]
    assert [term for term, _, _ in ROWS] == terms
    assert len(set(terms)) == len(terms)
