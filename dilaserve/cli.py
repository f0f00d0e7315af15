"""The `dilaserve` command: its sub-commands from dilaserve.commands, and their errors."""

import ast
import importlib
import os
import pkgutil
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from typer.exceptions import TyperException

from dilaserve import commands
from shared.errors import BadInput, DilaserveError
from shared.settings import PREFIX

SYNONYMS = {"serve": "up", "start": "up", "benchmark": "bench", "train": "train-predictor", "generate": "decode"}
INVALID_INPUT, FAILED = 2, 1  # exit statuses


def build_app(words: Sequence[str] | None = None) -> typer.Typer:
    """The command line. A module `train_predictor` of dilaserve.commands is the command `train-predictor`. Given the
    `words` of a call, only the command that they name is imported: others may be slow to import, or lack packages."""
    named = next((word for word in words or () if not word.startswith("-")), "")
    app = typer.Typer(
        name="dilaserve",
        help="Serve diffusion language models within latency SLOs, at the highest quality that the load allows.",
        epilog="Example: dilaserve up --port 8000",
        add_completion=True,
        pretty_exceptions_enable=False,
    )
    app.callback()(_general)
    for found in pkgutil.iter_modules(commands.__path__):
        name = found.name.replace("_", "-")
        if words is not None and name != named:
            app.command(name, help=_summary(found.name))(lambda: None)
            continue
        module = importlib.import_module(f"{commands.__name__}.{found.name}")
        command = getattr(module, found.name)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name, epilog=module.EXAMPLE)
        else:
            app.command(name, epilog=module.EXAMPLE)(command)
    return app


def _summary(name: str) -> str:
    """The first paragraph of a command's docstring, read without importing its module; for a group of commands, that of
    the module."""
    module = ast.parse(Path(commands.__path__[0], f"{name}.py").read_text(encoding="utf-8"))
    command = next((each for each in module.body if isinstance(each, ast.FunctionDef) and each.name == name), module)
    return (ast.get_docstring(command) or "").partition("\n\n")[0]


def main() -> None:
    """The console script. Exit status: 0 success, 2 wrong usage or invalid input, 1 another failure."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command. An error prints one line on standard error; DILASERVE_LOG_LEVEL=debug adds its traceback."""
    completed = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")  # by the user's shell
    try:
        app = build_app(arguments or completed.split()[1:])
        return app(args=arguments, prog_name="dilaserve", standalone_mode=False) or 0
    except (Exception, KeyboardInterrupt) as error:
        if os.environ.get(PREFIX + "LOG_LEVEL") == "debug":
            traceback.print_exception(error)
        text, code = describe(error)
        print(f"dilaserve: {' '.join(text.split())}", file=sys.stderr)  # noqa: T201  (the command's error line)
        return code


def describe(error: BaseException) -> tuple[str, int]:
    """The text and the exit status of an error."""
    match error:
        case TyperException():
            return f"{_with_remedy(error)} (see dilaserve --help)", error.exit_code
        case BadInput():
            return error.message, INVALID_INPUT
        case DilaserveError():
            return str(error), FAILED
        case ModuleNotFoundError():
            return f"the package {error.name} is not installed; see the groups in pyproject.toml", FAILED
        case KeyboardInterrupt():
            return "interrupted", FAILED
    return f"unexpected {type(error).__name__}: {error}", FAILED


def _with_remedy(error: TyperException) -> str:
    """The message about wrong usage, with the commands if none is given, or the one that has another name here."""
    message = error.format_message().replace("Value error, ", "")
    context = getattr(error, "ctx", None)
    if message == "Missing command." and context is not None:
        return f"{message} Accepted: {', '.join(context.command.list_commands(context))}"
    name = message.removeprefix("No such command '").removesuffix("'.")
    return f"{message} Did you mean '{SYNONYMS[name]}'?" if name in SYNONYMS else message


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"dilaserve {version('dilaserve')}")
        raise typer.Exit


def _general(
    *,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """The options before a sub-command."""
