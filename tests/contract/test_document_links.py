"""Relative links of the documents lead to files, and CONTRIBUTING.md names files and folders that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
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


def test_paths_named_in_contributing_exist() -> None:
    code = re.findall(r"`([\w./]+)`", (ROOT / "CONTRIBUTING.md").read_text())
    paths = [text for text in code if "/" in text and "SERVICE" not in text and not text.startswith(".site")]
    assert len(paths) > 30
    assert [path for path in paths if not (ROOT / path).exists()] == []
