"""The documentation site: it builds without a warning, and every link has a target."""

import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parents[2]
LINK = re.compile(r'(?:href|src)="([^"#?]+)')
CELL = re.compile(r"<td.*?</td>", re.DOTALL)
LOADED = re.compile(
    r'<(?:script|img|iframe)[^>]* src="([^"]+)|<link[^>]* rel="(?:stylesheet|preload|icon)"[^>]* href="([^"]+)'
)
DIAGRAM = 'class="mermaid"'


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(directory)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (built.returncode, built.stderr) == (0, "")
    return directory


@pytest.mark.slow
def test_the_site_loads_nothing_from_other_hosts_and_draws_diagrams(site: Path) -> None:
    pages = {page: page.read_text() for page in site.rglob("*.html")}
    loaded = {"".join(found) for text in pages.values() for found in LOADED.findall(text)}
    assert any(path.endswith(".css") for path in loaded)
    assert [path for path in loaded if ":" in path or path.startswith("//")] == []
    with_diagram = [text for text in pages.values() if DIAGRAM in text]
    assert with_diagram
    assert all("vendor/mermaid.tiny.js" in text for text in with_diagram)


@pytest.mark.slow
def test_tables_show_pipes_within_code_as_they_are(site: Path) -> None:
    cells = [cell for page in site.rglob("*.html") for cell in CELL.findall(page.read_text())]
    assert "<code>^(\\*|[A-Za-z0-9._-]+)$</code>" in "".join(cells)  # DILASERVE_ALLOWED_HOSTS
    assert [cell for cell in cells if r"\|" in cell] == []


@pytest.mark.slow
def test_every_link_of_the_site_has_a_target(site: Path) -> None:
    pages = [page for page in site.rglob("*.html") if page.name != "404.html"]  # whose links are from the root
    assert len(pages) > 10
    broken = [
        f"{page.relative_to(site)}: {link}"
        for page in pages
        for link in LINK.findall(page.read_text())
        if ":" not in link and not _found(page.parent / unquote(link))
    ]
    assert not broken


def _found(target: Path) -> bool:
    return target.is_file() or (target / "index.html").is_file()
