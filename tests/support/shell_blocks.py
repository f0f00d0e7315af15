"""Shell commands as the documents show them: indented by four spaces, or fenced as `sh`."""

import re
from dataclasses import dataclass
from pathlib import Path

REASON = re.compile(r"<!-- not run: (?P<reason>.+?) -->")
PROGRAMS = {"make", "curl", "dilaserve", "python", "docker", "docker-compose", "nats-server", "cd", "export", "git"}


@dataclass(frozen=True, slots=True)
class Command:
    """One command line, its continuations joined and its comment gone; why its block is not run, if it says so."""

    path: Path
    line: int  # from 1
    text: str
    reason: str | None

    @property
    def words(self) -> list[str]:
        """The program and its arguments, without the variables set before it."""
        words = self.text.split()
        while words and re.match(r"[A-Z_]+=", words[0]):
            words = words[1:]
        return words


def commands(path: Path) -> list[Command]:
    """The commands of a document, in order. A reason holds for the blocks below it until other text begins."""
    found: list[Command] = []
    reason: str | None = None
    fence = ""
    open_line, open_text = 0, ""
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if line.startswith("```"):
            fence = "" if fence else line.removeprefix("```").strip() or "text"
        elif fence == "sh" or (not fence and line.startswith("    ")):
            part = re.sub(r"\s+# .*$", "", line).strip()
            open_line, open_text = (open_line, f"{open_text} {part}") if open_text else (number, part)
            if open_text.endswith("\\"):
                open_text = open_text.removesuffix("\\").rstrip()
                continue
            found.append(Command(path, open_line, open_text, reason))
            open_text = ""
        elif match := REASON.search(line):
            reason = match["reason"]
        elif line.strip():
            reason = None
    return [command for command in found if command.words and _is_command(command.words[0])]


def _is_command(word: str) -> bool:
    return word in PROGRAMS or word.rpartition("/")[2] in PROGRAMS or word.endswith(".sh") or word.startswith("./")
