r"""A MkDocs hook: copies linked files of the repository to the site, and shows tables as GitHub does.

Each file outside docs/ that a page links to is added below `source/`, a Markdown file as a page, and the links are
changed accordingly. A broken link stays unchanged; MkDocs reports it.

Within code in a table, GitHub shows `\|` as a pipe, and Python-Markdown needs a plain pipe.
"""

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
FOLDER = "source"
TABLE_ROW = re.compile(r"^\|.*$", re.MULTILINE)
CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)")
LINK = re.compile(r"(?P<open>\]\()(?P<path>(?!\w+:|[#/])[^)#\s]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the linked files, and recursively those that they link to."""
    queue = [file.src_uri for file in files.documentation_pages()]
    while queue:
        page = queue.pop()
        for target in _targets(page):
            uri = _uri(target)
            if files.get_file_from_path(uri) is None:
                files.append(File.generated(config, uri, abs_src_path=str(ROOT / target)))
                queue += [uri] if uri.endswith(".md") else []
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Change the links of `page`, and the pipes within code in its tables."""
    here = page.file.src_uri

    def change(match: re.Match[str]) -> str:
        target = _target(here, match["path"])
        return match[0] if target is None else match["open"] + relpath(_uri(target), str(PurePosixPath(here).parent))

    return TABLE_ROW.sub(_with_plain_pipes, LINK.sub(change, markdown))


def _with_plain_pipes(row: re.Match[str]) -> str:
    return CODE.sub(lambda code: code[0].replace(r"\|", "|"), row[0])


def _targets(page: str) -> list[str]:
    found = [_target(page, match["path"]) for match in LINK.finditer((ROOT / _path(page)).read_text())]
    return [target for target in found if target is not None]


def _target(page: str, link: str) -> str | None:
    """The target of a link in the repository, for a folder its README; None if it does not exist."""
    target = normpath(PurePosixPath(_path(page)).parent / link)
    if (ROOT / target).is_dir():
        target += "/README.md"
    return target if not target.startswith("..") and (ROOT / target).is_file() else None


def _path(uri: str) -> str:
    """The repository path of a file of the site."""
    return uri.removeprefix(f"{FOLDER}/") if uri.startswith(f"{FOLDER}/") else f"docs/{uri}"


def _uri(target: str) -> str:
    """The site path of a file of the repository, without a leading dot, as MkDocs ignores dot files."""
    if target.startswith("docs/"):
        return target.removeprefix("docs/")
    path = PurePosixPath(target)
    return str(PurePosixPath(FOLDER) / path.with_name(path.name.removeprefix(".")))
