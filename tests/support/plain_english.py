"""Finds wording that CONTRIBUTING.md rules out, in documents, docstrings, comments, messages and the console.

`python -m tests.support.plain_english PATH…` prints one line per finding: `path:line: words → alternative`.
"""

import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.passages import Passage, passages


@dataclass(frozen=True, slots=True)
class Rule:
    """A pattern of words, the plain alternative, and the reason in a few words."""

    pattern: re.Pattern[str]
    instead: str
    why: str


@dataclass(frozen=True, slots=True)
class Finding:
    """Words of a file that break a rule."""

    path: Path
    line: int  # from 1
    words: str
    rule: Rule

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.words!r} → {self.rule.instead}"


def rule(pattern: str, instead: str, why: str) -> Rule:
    """A rule whose pattern matches whole words, over line ends, in any case unless it starts with (?-i:…)."""
    return Rule(re.compile(rf"(?<![\w-])(?:{pattern})(?![\w-])".replace(" ", r"\s+"), re.IGNORECASE), instead, why)


COUNTED = (
    "request|message|iteration|instance|row|step|line|subject|batch|file|process|node|cell|GPU|token|model|run|test|"
    "block|command|gateway|key|mask|module|question|rank|scheduler|service|worker"
)
MOVES = "take[sn]?|taking|took|gives?|given|giving|gave|throw[sn]?|throwing|threw|move[sd]?|moving"
RULES = [
    rule("anew", "again", "archaic"),
    rule("mend|mends|mended|mending", "fix, repair", "archaic"),
    rule("whoever|whomever", "the client that, any", "headless clause"),
    rule("tell|tells|telling|told", "report, log, state, show", "a program does not talk"),
    rule("say|says|said|saying", "report, log, state, show, return", "a program does not talk"),
    rule("hear|hears|heard|hearing", "receive", "a program does not hear"),
    rule("(?:is|are|was|were|be) (?-i:none)(?! of)", "is invalid, does not exist", "riddle"),
    rule(r"(?:is|are|was|were|be|isn't) there(?=[,.;:)]|\Z)", "exists, is available", "vague"),
    rule("away(?! from)", "unavailable, down, gone", "vague"),
    rule("so (?:many|long|much|often|few)(?! that)", "the number, this number of, as long as", "vague amount"),
    rule(
        rf"(?:one|two|three)(?: (?!is|was|of|in|to|for|as|at|on|by|than|has)(?![a-z]+ing )[a-z]+)? an? (?:{COUNTED})",
        "one per request",
        "unusual",
    ),
    rule("nobody waits|no one waits|waits? for (?:no one|nobody)", "without a waiting client", "riddle"),
    rule("bury|buries|buried|burying", "discard", "figurative"),
    rule("in vain", "without effect", "archaic"),
    rule("no more than", "at most", "indirect"),
    rule("worth the while", "worthwhile", "archaic"),
    rule("nor (?:do|does|did|is|are|was|has|have|can|will)", "and does not", "inverted"),
    rule("for want of", "because … is missing", "archaic"),
    rule("by ear", "from bus messages", "riddle"),
    rule("(?:has|have|had) come|(?:come|comes|came) (?:of|from)", "arrived, is from, results from", "vague"),
    rule(
        "(?:go|goes|going|went|gone) on(?! (?:the|an?|one|its|their|another|each|every|any|this|that) )",
        "continue",
        "vague",
    ),
    rule("(?:stand|stands|stood|standing) (?:for|in|here|there)", "is, represents, is in", "a text does not stand"),
    rule("no word of|word of (?:it|that|this)", "no message from", "riddle"),
    rule("under way", "in progress, running", "idiom"),
    rule("at least so", "probably", "vague"),
    rule("it takes an?", "it needs a", "inverted"),
    rule("as ever", "unchanged", "vague"),
    rule(r"of late(?=[,.;:)]|\Z)", "recently", "archaic"),
]
HEADLESS = Rule(
    re.compile(r"(?:\A|(?<=[.!?;]\s))\s*What\b(?:[^.!?]|\.(?=\S))*(?:[.!]|\Z)"),
    "a noun phrase or a full sentence",
    "headless clause",
)
HEADLESS_START = Rule(re.compile(r"\A\s*what\b(?:[^.!?]|\.(?=\S))*(?:[.!]|\Z)"), HEADLESS.instead, HEADLESS.why)
ROOT = Path(__file__).parents[2]
SUFFIXES = {".py", ".md", ".html", ".js", ".css", ".yml", ".sh", ".toml", ".conf", ".example", ".Dockerfile"}
NAMES = {"Makefile", "Dockerfile", "run"}
SKIPPED_FOLDERS = {"__pycache__", "build", "dist", "vendor", "golden"}  # and hidden ones
QUOTING = {Path("tests/support/plain_english.py"), Path("tests/contract/test_plain_english.py")}
# Phrases in which a word of a rule has its plain meaning.
ALLOWED = re.compile(
    rf"there (?:is|are|was|were) none|(?:right|straight) away|(?:{MOVES})(?: \w+){{0,3}} away".replace(" ", r"\s+"),
    re.IGNORECASE,
)


def findings(path: Path) -> list[Finding]:
    """All findings in one file, by line."""
    found = [finding for passage in passages(path) for finding in of_passage(path, passage)]
    return sorted(found, key=lambda finding: finding.line)


def of_passage(path: Path, passage: Passage) -> Iterator[Finding]:
    """The findings in one passage; words inside an allowed phrase are no finding."""
    allowed = [match.span() for match in ALLOWED.finditer(passage.text)]
    for each in (*RULES, HEADLESS, HEADLESS_START):
        for match in each.pattern.finditer(passage.text):
            if not any(start <= match.start() and match.end() <= end for start, end in allowed):
                words = " ".join(match[0].split())
                start = match.start() + len(match[0]) - len(match[0].lstrip())
                yield Finding(path, passage.line_of(start), words[:60], each)


def files(paths: Iterable[Path]) -> Iterator[Path]:
    """The files that are checked among the paths and below them."""
    for path in paths:
        below = sorted(path.rglob("*")) if path.is_dir() else [path]
        yield from (each for each in below if each.is_file() and is_checked(each))


def is_checked(path: Path) -> bool:
    """Whether the file holds English of this project: it is not vendored, hidden, or data."""
    inside = path.absolute().relative_to(ROOT)
    return (
        (inside.suffix in SUFFIXES or inside.name in NAMES)
        and inside not in QUOTING
        and not any(part in SKIPPED_FOLDERS or is_hidden(part) for part in inside.parts)
    )


def is_hidden(part: str) -> bool:
    """Whether a part of a path belongs to a tool, such as `.venv`, and not to the project."""
    return part.endswith(".egg-info") or (part.startswith(".") and not part.startswith((".ci", ".env", ".docker")))


def main(arguments: list[str]) -> int:
    found = [finding for path in files(map(Path, arguments)) for finding in findings(path)]
    sys.stdout.writelines(f"{finding}\n" for finding in found)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
