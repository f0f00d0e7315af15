"""The documents: their links lead to files, and the tests, names of the code and commands that they show exist."""

import ast
import importlib.util
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from typer.main import get_command

from dilaserve.cli import build_app
from tests.support.documented import ELSEWHERE, RUN, exists
from tests.support.shell_blocks import ROOT, Command, blocks, commands

DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    ROOT / "SECURITY.md",
    ROOT / "experiments" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_relative_links_lead_to_files(path: Path) -> None:
    missing = [link for link in LINK.findall(path.read_text()) if not (path.parent / link).exists()]
    assert not missing


def anchors(path: Path) -> set[str]:
    """Those that GitHub gives the headings of a document."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = (re.sub(r"\]\([^)]*\)", "", heading) for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE))
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_to_headings_lead_to_one(path: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)", path.read_text())
    targets = [((path.parent / file).resolve() if file else path, anchor) for file, anchor in links]
    assert [anchor for target, anchor in targets if target.suffix == ".md" and anchor not in anchors(target)] == []


def test_paths_named_in_contributing_exist() -> None:
    code = re.findall(r"`([\w./]+)`", (ROOT / "CONTRIBUTING.md").read_text())
    paths = [text for text in code if "/" in text and "SERVICE" not in text and not text.startswith(".site")]
    assert len(paths) > 30
    assert [path for path in paths if not (ROOT / path).exists()] == []


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


SHOWING = [
    *RUN,
    ROOT / "CONTRIBUTING.md",
    ROOT / "simulator/README.md",
    *sorted((ROOT / "services").glob("*/README.md")),
]
COMMANDS = [command for path in SHOWING for block in blocks(path) for command in commands(block)]
APP = get_command(build_app())
INLINE = re.compile(r"`(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?dilaserve ([a-z][^`]*)`")


def label(command: Command) -> str:
    return f"{command.block.where}:{command.words[0]}"


def unknown_options(words: list[str]) -> set[str]:
    """Options among the words after `dilaserve` that its sub-command lacks, or the sub-command if it does not exist."""
    node, rest = APP, words
    while rest and (below := getattr(node, "commands", {})):
        if rest[0] not in below:
            return {rest[0]}
        node, rest = below[rest[0]], rest[1:]
    known = {name for option in node.params for name in (*option.opts, *option.secondary_opts)} | {"--help"}
    return {word.partition("=")[0] for word in rest if re.match(r"--[a-z]", word)} - known


def test_the_documents_show_commands() -> None:
    assert {command.words[0] for command in COMMANDS} >= {"make", "curl", "dilaserve"}


@pytest.mark.parametrize("command", COMMANDS, ids=label)
def test_a_command_exists(command: Command) -> None:
    match command.words:
        case ["make", target, *_]:
            assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
        case ["dilaserve" | ".venv/bin/dilaserve", *words]:
            assert not unknown_options(words)
        case ["python" | ".venv/bin/python", "-m", module, *_]:
            assert importlib.util.find_spec(module) is not None
        case _ if command.block.reason is None and command.block.path not in RUN:
            pytest.fail(f"{label(command)}: no test runs {command.text!r}; write above it <!-- not run: REASON -->")


@pytest.mark.parametrize("path", SHOWING, ids=lambda path: str(path.relative_to(ROOT)))
def test_options_named_in_the_text_exist(path: Path) -> None:
    shown = [match[1] for match in INLINE.finditer(path.read_text())]
    wrong = {text: unknown for text in shown if (unknown := unknown_options(text.split()))}
    assert not wrong


@pytest.mark.parametrize("command", ELSEWHERE)
def test_a_command_of_another_test_is_documented_and_that_test_exists(command: str) -> None:
    assert command in {shown.text for shown in COMMANDS}
    assert exists(ELSEWHERE[command])


def test_the_page_of_commands_lists_each_command_and_every_option_of_up() -> None:
    page = (ROOT / "docs/commands.md").read_text()
    subcommands = getattr(APP, "commands", {})
    options = [option.opts[0] for option in subcommands["up"].params]
    missing = [name for name in options if not re.search(rf"`{name}[` ]", page)]
    assert missing + [name for name in subcommands if f"`dilaserve {name}" not in page] == []
