"""The documents' commands: blocks fenced as `sh` or indented by four spaces, and Python programs."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
REASON = re.compile(r"<!-- not run: (?P<reason>.+?) -->")
PROGRAMS = {"make", "curl", "dilaserve", "python", "docker", "docker-compose", "nats-server", "cd", "export", "git"}


@dataclass(frozen=True, slots=True)
class Block:
    """A block of a document, with the reason if it is not run."""

    path: Path
    line: int  # of its first line, from 1
    language: str  # "sh" or "python"
    text: str
    reason: str | None

    @property
    def where(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}"


@dataclass(frozen=True, slots=True)
class Command:
    """A command of a shell block as one line without its comment."""

    block: Block
    text: str

    @property
    def words(self) -> list[str]:
        """The program and its arguments, without the variables set before it."""
        words = self.text.split()
        while words and re.match(r"[A-Z_]+=", words[0]):
            words = words[1:]
        return words


def blocks(path: Path) -> list[Block]:
    """The shell commands and Python programs of a document, in order.

    A reason holds for the blocks below it until other text begins.
    """
    found: list[Block] = []
    reason: str | None = None
    fence = ""
    first, lines = 0, list[str]()

    def end(language: str) -> None:
        if lines and (language != "indented" or _is_shell("\n".join(lines))):
            language = language.replace("indented", "sh")
            found.append(Block(path, first, language, "\n".join(lines).rstrip() + "\n", reason))
        lines.clear()

    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if line.startswith("```"):
            if fence in {"sh", "python"}:
                end(fence)
            lines.clear()
            fence = "" if fence else line.removeprefix("```").strip() or "text"
        elif fence or line.startswith("    ") or (lines and not line):
            first = first if lines else number
            lines.append(line if fence else line[4:])
        else:
            end("indented")
            if match := REASON.search(line):
                reason = match["reason"]
            elif line:
                reason = None
    end("indented")
    return found


def commands(block: Block) -> list[Command]:
    """The commands of a shell block; each has one or more lines."""
    if block.language != "sh":
        return []
    found: list[Command] = []
    text = ""
    for line in block.text.splitlines():
        text += line if not text else f"\n{line}"
        try:
            words = shlex.split(text, comments=True)
        except ValueError:  # an open quotation
            continue
        if not text.endswith("\\"):
            if words:
                bare = re.sub(r"\s+# .*$", "", text).replace("\\\n", " ")
                found.append(Command(block, re.sub(r"\s+", " ", bare).strip()))
            text = ""
    return found


def _is_shell(text: str) -> bool:
    words = re.sub(r"^([A-Z_]+=\S+\s+)+(\\\n\s*)?", "", text.lstrip()).split(maxsplit=1)
    word = words[0] if words else ""
    return word.rpartition("/")[2] in PROGRAMS or word.endswith(".sh") or word.startswith("./")
