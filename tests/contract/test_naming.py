"""Names follow the rules of CONTRIBUTING.md: constants, classes, tests, and imports between test modules."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRODUCT = ["dilaserve", "experiments", "services", "shared", "simulator"]
CONSTANT = re.compile(r"_?(?:MOST|LEAST|LONGEST|FEWEST|SHORTEST)_")
MAX_TEST_NAME = 79  # characters


def modules(*folders: str) -> dict[str, ast.Module]:
    """The parsed modules below folders, by their path in the repository."""
    return {path: tree for folder in folders for path, tree in modules_below(folder).items()}


@cache
def modules_below(folder: str) -> dict[str, ast.Module]:
    paths = sorted((ROOT / folder).rglob("*.py"))
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in paths}


def named_tests(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node


def imported(node: ast.stmt) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=str(module), names=names):
            return [module, *(f"{module}.{alias.name}" for alias in names)]
    return []


@pytest.mark.slow  # reads every module
def test_constants_are_named_max_or_min() -> None:
    names = {
        f"{path}: {node.id}"
        for path, tree in modules(*PRODUCT, "tests").items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and CONSTANT.match(node.id)
    }
    assert sorted(names) == []


def test_each_public_class_has_a_name_of_its_own() -> None:
    paths = defaultdict(list)
    for path, tree in modules(*PRODUCT).items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                paths[node.name].append(path)
    assert {name: found for name, found in paths.items() if len(found) > 1} == {}


def test_names_of_tests_are_short() -> None:
    names = [
        f"{path}: {test.name}"
        for path, tree in modules("tests").items()
        for test in named_tests(tree)
        if len(test.name) > MAX_TEST_NAME
    ]
    assert names == []


def test_no_test_module_imports_another() -> None:
    imports = [
        f"{path} imports {name}"
        for path, tree in modules("tests").items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in imported(node)
        if re.match(r"tests\.(?:\w+\.)*test_\w+$", name)
    ]
    assert sorted(set(imports)) == []
