"""A hook of MkDocs: the documents link into the repository, and the site has no repository to link to.

So each file that a page links to outside docs/ comes along below `source/`, a Markdown file as a page, and the links
of all pages are turned to where their targets lie on the site. A link that leads nowhere stays as it is; MkDocs
then says so.
"""

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
BELOW = "source"
LINK = re.compile(r"(?P<open>\]\()(?P<path>(?!\w+:|[#/])[^)#\s]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what pages link to, and what those pages link to."""
    waiting = [file.src_uri for file in files.documentation_pages()]
    while waiting:
        page = waiting.pop()
        for target in _targets(page):
            uri = _uri(target)
            if files.get_file_from_path(uri) is None:
                files.append(File.generated(config, uri, abs_src_path=str(ROOT / target)))
                waiting += [uri] if uri.endswith(".md") else []
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Turn the links of `page`."""
    here = page.file.src_uri

    def turned(match: re.Match[str]) -> str:
        target = _target(here, match["path"])
        return match[0] if target is None else match["open"] + relpath(_uri(target), str(PurePosixPath(here).parent))

    return LINK.sub(turned, markdown)


def _targets(page: str) -> list[str]:
    found = [_target(page, match["path"]) for match in LINK.finditer((ROOT / _path(page)).read_text())]
    return [target for target in found if target is not None]


def _target(page: str, link: str) -> str | None:
    """The file that a link of a page leads to, for a folder its README; None: the repository has none."""
    target = normpath(PurePosixPath(_path(page)).parent / link)
    if (ROOT / target).is_dir():
        target += "/README.md"
    return target if not target.startswith("..") and (ROOT / target).is_file() else None


def _path(uri: str) -> str:
    """Where a file of the site lies in the repository."""
    return uri.removeprefix(f"{BELOW}/") if uri.startswith(f"{BELOW}/") else f"docs/{uri}"


def _uri(target: str) -> str:
    """Where a file of the repository lies on the site. What begins with a dot would be left out there."""
    if target.startswith("docs/"):
        return target.removeprefix("docs/")
    path = PurePosixPath(target)
    return str(PurePosixPath(BELOW) / path.with_name(path.name.removeprefix(".")))
