"""Every shell command in the documents exists, or a comment gives the reason why no test runs it.

This module checks the program, its sub-command and its options. tests/e2e/test_documented_commands.py runs the commands
of the user's documents.
"""

import importlib.util
import re
from pathlib import Path

import pytest
from typer.main import get_command

from dilaserve.cli import build_app
from tests.support.documented import ELSEWHERE, RUN, exists
from tests.support.shell_blocks import ROOT, Command, blocks, commands

DOCUMENTS = [
    *RUN,
    ROOT / "CONTRIBUTING.md",
    ROOT / "simulator/README.md",
    *sorted((ROOT / "services").glob("*/README.md")),
]
COMMANDS = [command for path in DOCUMENTS for block in blocks(path) for command in commands(block)]
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


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
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
