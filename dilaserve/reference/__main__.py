"""Writes the generated files; with `--check`, fails if one is not current."""

import sys
from pathlib import Path

from dilaserve.reference import asyncapi, configuration

ROOT = Path(__file__).parents[2]


def pages() -> dict[Path, str]:
    """Path and text of each generated file."""
    return {ROOT / "docs" / "asyncapi.json": asyncapi.text(), ROOT / "docs" / "configuration.md": configuration.text()}


def main(arguments: list[str]) -> int:
    stale = [path for path, text in pages().items() if not path.exists() or path.read_text() != text]
    if arguments == ["--check"]:
        for path in stale:
            sys.stderr.write(f"{path.name} is not current: run python -m dilaserve.reference\n")
        return 1 if stale else 0
    if arguments:
        sys.stderr.write("usage: python -m dilaserve.reference [--check]\n")
        return 2
    for path in stale:
        path.write_text(pages()[path])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
