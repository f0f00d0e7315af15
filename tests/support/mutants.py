"""Changes one expression of the product at a time, and counts the changes that the unit tests of its area notice.

python -m tests.support.mutants --seed 1 --each 25
python -m tests.support.mutants --area patterns --only shared/patterns/schema_merging.py --each 10

Each mutant runs in a fork of one process that has imported the slow packages. Of the tests of its area, those run that
call the changed function. Prints a line for each that survives, and the figures of each area.
"""

import ast
import copy
import importlib.util
import json
import os
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FrameType, ModuleType
from typing import Annotated

import pytest
import typer

ROOT = Path(__file__).parents[2]
SLOW_PACKAGES = ("numpy", "torch", "msgspec", "structlog", "transformers", "pydantic", "scipy", "nats")
BROKEN = 99  # exit status of a fork in which pytest itself fails
LIMIT_S = 120.0  # of the tests of one mutant; one that takes longer is noticed
WARNING = "ignore::pytest.PytestAssertRewriteWarning"
OPTIONS = ["-q", "-x", "-W", WARNING, "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist"]
OPTIONS += ["-m", "not slow and not cuda"]


@dataclass(frozen=True, slots=True)
class Area:
    """`modules`: patterns of the files to change; `tests`: those of its unit tests."""

    modules: Sequence[str]
    tests: Sequence[str]


MISSED_COLLECTIVES = (
    "tests/integration/test_ranks_memory.py::test_the_missed_collectives_have_the_shapes_of_the_real_ones"
)
AREAS = {
    "scheduler": Area(
        ["services/scheduler/core.py", "services/scheduler/dispatch.py"]
        + [f"services/scheduler/{part}/*.py" for part in ("algorithms", "policies", "state")],
        ["tests/unit/scheduler"],
    ),
    "worker": Area(
        [f"services/worker/{part}/*.py" for part in ("engine", "cache", "model")],
        ["tests/unit/worker", MISSED_COLLECTIVES],
    ),
    "planner": Area(
        ["services/reconfigurator/planning/*.py"],
        ["tests/unit/reconfigurator", "tests/integration/reconfigurator/test_planner.py"]
        + [f"tests/integration/reconfigurator/test_{part}.py" for part in ("decision", "solver", "stages")],
    ),
    "patterns": Area(
        ["shared/patterns/*.py"],
        [f"tests/unit/shared/test_{part}.py" for part in ("grammar", "json_schema", "pattern_automaton")]
        + [f"tests/unit/worker/test_{part}.py" for part in ("patterns", "pattern_texts")]
        + ["tests/unit/shared/test_schema_pairs.py"],
    ),
}  # fmt: skip
OPPOSITES: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.And: ast.Or, ast.Or: ast.And, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
NAMES = {"min": "max", "minimum": "maximum", "any": "all", "ceil": "floor"}
NAMES |= {other: name for name, other in NAMES.items()}
UNCHANGED = (ast.Assert, ast.Raise, ast.Import, ast.ImportFrom, ast.JoinedStr)  # messages, and what types need


@dataclass(frozen=True, slots=True)
class Mutant:
    """`number`: of the change among all of the file; `function`: its qualified name, empty outside functions; `text`:
    the new line."""

    file: str
    number: int
    line: int
    function: str
    text: str


def changes(tree: ast.AST) -> Iterator[tuple[int, Callable[[], None]]]:
    """Each change of the tree: its line, and a function that makes it."""
    for node in _expressions(tree):
        line = getattr(node, "lineno", 0)
        match node:
            case ast.Compare(ops=[op]) if type(op) in OPPOSITES:
                yield line, _setter(node, "ops", [OPPOSITES[type(op)]()])
            case ast.BinOp(op=op) | ast.BoolOp(op=op) | ast.AugAssign(op=op) if type(op) in OPPOSITES:
                yield line, _setter(node, "op", OPPOSITES[type(op)]())
            case ast.Constant(value=bool(value)):
                yield line, _setter(node, "value", not value)
            case ast.Constant(value=int(value) | float(value)):
                yield line, _setter(node, "value", value + 1 if isinstance(value, int) else 2 * value + 1)
            case ast.Call(func=ast.Name(id=name) as func) if name in NAMES:
                yield line, _setter(func, "id", NAMES[name])
            case ast.Call(func=ast.Attribute(attr=name) as func) if name in NAMES:
                yield line, _setter(func, "attr", NAMES[name])
            case ast.UnaryOp(op=ast.Not()):
                yield line, _setter(node, "operand", ast.UnaryOp(ast.Not(), node.operand))
            case ast.If(test=test) | ast.IfExp(test=test):
                yield line, _setter(node, "test", ast.UnaryOp(ast.Not(), test))


def _setter(node: ast.AST, name: str, value: object) -> Callable[[], None]:
    return lambda: setattr(node, name, value)


def _expressions(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes below this one that tests can notice: no annotations, texts of errors, log lines or docstrings."""
    for name, value in ast.iter_fields(node):
        if name in {"annotation", "returns", "decorator_list"}:
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, UNCHANGED) or _is_log(child):
                continue
            yield child
            yield from _expressions(child)


def _is_log(node: ast.AST) -> bool:
    return ast.unparse(node).startswith("log.") if isinstance(node, ast.Expr) else False


def mutants_of(file: str) -> list[Mutant]:
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    functions = dict(_functions(tree, ""))
    return [
        Mutant(file, number, line, functions.get(line, ""), _changed_line(copy.deepcopy(tree), number, line))
        for number, (line, _) in enumerate(changes(tree))
    ]


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[int, str]]:
    """Each line within a function with the innermost one's qualified name, the outer functions first."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            name = prefix + child.name
            yield from ((line, name) for line in range(child.body[0].lineno, (child.end_lineno or 0) + 1))
            yield from _functions(child, f"{name}.<locals>.")
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")
        else:
            yield from _functions(child, prefix)


def mutated(tree: ast.Module, number: int) -> ast.Module:
    """The tree with one change made."""
    for place, (_, change) in enumerate(changes(tree)):
        if place == number:
            change()
            break
    return ast.fix_missing_locations(tree)


def _changed_line(tree: ast.Module, number: int, line: int) -> str:
    before = ast.unparse(tree).splitlines()
    after = ast.unparse(mutated(tree, number)).splitlines()
    return next((new.strip() for old, new in zip(before, after, strict=False) if old != new), f"line {line}")


class Changed(Loader):
    """Imports one module with its change."""

    def __init__(self, mutant: Mutant) -> None:
        self.name = mutant.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        self._mutant = mutant

    def find_spec(self, name: str, _path: object, _target: object = None) -> ModuleSpec | None:
        path = ROOT / self._mutant.file
        return importlib.util.spec_from_file_location(name, path, loader=self) if name == self.name else None

    def exec_module(self, module: ModuleType) -> None:
        tree = ast.parse((ROOT / self._mutant.file).read_text("utf-8"))
        exec(compile(mutated(tree, self._mutant.number), str(ROOT / self._mutant.file), "exec"), module.__dict__)  # noqa: S102


class Reached:
    """A plugin of pytest that writes which tests call each function of some files, and how long each takes."""

    def __init__(self, files: Sequence[str], out: Path) -> None:
        self._files = {str(ROOT / file): file for file in files}
        self._called = set[tuple[str, str]]()
        self._reached: dict[str, list[str]] = {}
        self._seconds: dict[str, float] = {}
        self._out = out

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._called.clear()
        began_s = time.perf_counter()
        sys.settrace(self._trace)
        yield
        sys.settrace(None)
        self._seconds[item.nodeid] = time.perf_counter() - began_s
        for file, function in self._called:
            self._reached.setdefault(f"{self._files[file]}:{function}", []).append(item.nodeid)

    def pytest_sessionfinish(self) -> None:
        self._out.write_text(json.dumps([self._reached, self._seconds]))

    def _trace(self, frame: FrameType, _event: str, _argument: object) -> None:
        code = frame.f_code
        if code.co_filename in self._files:
            self._called.add((code.co_filename, code.co_qualname))


def in_fork(run: Callable[[], int], limit_s: float) -> int:
    """The status of a function in a fork, without its output; -1 if it takes longer."""
    child = os.fork()
    if child == 0:
        nothing, shown = os.open(os.devnull, os.O_WRONLY), os.dup(2)
        os.dup2(nothing, 1)
        os.dup2(nothing, 2)
        try:
            os._exit(int(run()))
        except BaseException:
            os.write(shown, traceback.format_exc().encode())
            os._exit(BROKEN)
    ends_s = time.monotonic() + limit_s
    while time.monotonic() < ends_s:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            if code == BROKEN:
                raise RuntimeError("pytest itself fails in a fork")
            return code
        time.sleep(0.02)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return -1


def reached_by(area: Area, files: Sequence[str]) -> tuple[dict[str, list[str]], dict[str, float]]:
    """The tests that call each `FILE:FUNCTION`, and the seconds of each test. Raises: RuntimeError if they fail."""
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "reached.json"
        options = [option for option in OPTIONS if option != "-x"]
        status = in_fork(lambda: pytest.main([*options, *area.tests], plugins=[Reached(files, out)]), 3600.0)
        if status or not out.exists():
            raise RuntimeError(f"the tests of the unchanged code end with status {status}")
        reached, seconds = json.loads(out.read_text())
    return reached, seconds


def is_noticed(mutant: Mutant, reached: dict[str, list[str]], seconds: dict[str, float]) -> bool:
    tests = reached.get(f"{mutant.file}:{mutant.function}", []) if mutant.function else None
    if tests is None:  # a line that runs at the import: all tests of the file
        tests = sorted(
            {test for place, some in reached.items() if place.startswith(f"{mutant.file}:") for test in some}
        )
    if not tests:
        return False
    tests = sorted(tests, key=lambda test: seconds[test])

    def run() -> int:
        sys.meta_path.insert(0, Changed(mutant))
        return int(pytest.main([*OPTIONS, *tests]))

    return in_fork(run, LIMIT_S) != 0


def main(
    area: Annotated[list[str] | None, typer.Option(help="Areas; all by default.")] = None,
    only: Annotated[str, typer.Option(help="Pattern of the files to change.")] = "",
    each: Annotated[int, typer.Option(help="Mutants of each area.")] = 25,
    seed: Annotated[int, typer.Option(help="Of the choice of mutants.")] = 1,
) -> None:
    """Change the product in many places, one at a time, and count the changes that tests notice."""
    os.chdir(ROOT)
    for package in SLOW_PACKAGES:
        importlib.import_module(package)
    found = Counter[str]()
    for name in area or AREAS:
        patterns = AREAS[name].modules
        files = [str(path.relative_to(ROOT)) for pattern in patterns for path in sorted(ROOT.glob(pattern))]
        files = [file for file in files if Path(file).match(only or "*")]
        possible = [mutant for file in files for mutant in mutants_of(file)]
        chosen = random.Random(seed).sample(possible, min(each, len(possible)))
        reached, seconds = reached_by(AREAS[name], files)
        for mutant in chosen:
            noticed = is_noticed(mutant, reached, seconds)
            found[name] += noticed
            if not noticed:
                typer.echo(f"survives: {mutant.file}:{mutant.line}: {mutant.text}")
        typer.echo(f"{name}: {found[name]} of {len(chosen)} noticed ({len(possible)} possible)")


if __name__ == "__main__":
    typer.run(main)
