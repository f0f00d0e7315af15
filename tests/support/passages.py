"""The English of a file as passages: paragraphs, docstrings, comments, messages, labels; code is left out."""

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from itertools import groupby
from pathlib import Path

INLINE_CODE = re.compile(r"(`+)(?:(?!\1)(?:.|\n(?!\n)))+?\1")
LINK_TARGET = re.compile(r"\]\([^)\n]*\)|<https?://[^>]*>|https?://\S+")
HTML_MARK = re.compile(r"<!--|-->")
BLOCK_START = re.compile(r"\s*(?:[-*] |\d+\. |#+ |\|)")
SCRIPT_TEXT = re.compile(r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|`(?:\\.|[^`\\])*`""", re.DOTALL)
SUBSTITUTION = re.compile(r"\$\{[^}]*\}?")
SENTENCE = re.compile(r"[A-Za-z']{2,},? [A-Za-z']{2,}")
LABELS = {"alt", "aria-label", "content", "placeholder", "title"}
HASH_COMMENTS = {".conf", ".env", ".example", ".sh", ".toml", ".yml", ".yaml", ""}


@dataclass(frozen=True, slots=True)
class Passage:
    text: str
    line: int  # of its first character, from 1
    exact: bool = True  # whether a line end in the text is a line end of the file

    def line_of(self, offset: int) -> int:
        return self.line + (self.text.count("\n", 0, offset) if self.exact else 0)


def passages(path: Path) -> Iterator[Passage]:
    """The passages of a file, by its type; none for a type that holds no English."""
    text = path.read_text()
    match path.suffix:
        case ".py":
            yield from of_python(text, names=path.name.startswith("test_"))
        case ".md":
            yield from of_markdown(unreleased(text) if path.name == "CHANGELOG.md" else text)
        case ".html":
            yield from of_html(text)
        case ".js" | ".css":
            yield from of_script(text)
        case suffix if suffix in HASH_COMMENTS:
            yield from of_comments((number, line) for number, line in hash_comments(text))


def unreleased(changelog: str) -> str:
    """The text before the section of the last release, which stays as it was published."""
    return re.split(r"(?m)^## \[(?!Unreleased)", changelog)[0]


def without_code(text: str) -> str:
    """The same text and line ends with inline code, link targets and addresses blanked."""
    for pattern in (INLINE_CODE, LINK_TARGET, HTML_MARK):
        text = pattern.sub(lambda match: re.sub(r"[^\n]", "_", match[0]), text)
    return text.replace("*", " ")


def of_markdown(text: str) -> Iterator[Passage]:
    """Paragraphs, headings, list items and cells of tables."""
    blocks: list[tuple[int, list[str]]] = []
    fence, blank, listed = "", True, False
    for number, line in enumerate(text.splitlines(), 1):
        marker = re.match(r"\s*(```+|~~~+)", line)
        if fence or marker:
            fence = "" if fence and marker else fence or (marker[1] if marker else "")
            blank = True
        elif not line.strip():
            blank = True
        elif blank and re.match(r"(?: {4}|\t)", line) and not listed:
            continue  # a block of code: the line after it is one as well
        else:
            starts = BLOCK_START.match(line)
            listed = (
                bool(re.match(r"\s*(?:[-*]|\d+\.) ", line)) or (listed and not blank) or (listed and line[0] == " ")
            )
            if blank or starts:
                blocks.append((number, []))
            blocks[-1][1].append(line)
            blank = False
    for number, lines in blocks:
        joined = without_code("\n".join(lines))
        if joined.lstrip().startswith("|"):
            yield from (Passage(cell, number) for cell in joined.split("|"))
        else:
            yield Passage(re.sub(r"\A\s*(?:[-*>]|\d+\.|#+) ", lambda mark: " " * len(mark[0]), joined), number)


def of_python(text: str, *, names: bool = False) -> Iterator[Passage]:
    """Docstrings, comments and other literals that are sentences, with `names` the names of tests."""
    tree = ast.parse(text)
    docstrings = {id(node.body[0].value) for node in ast.walk(tree) if has_docstring(node)}  # type: ignore[attr-defined]
    inner = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in ast.walk(node)
        if part is not node
    }
    for node in ast.walk(tree):
        if id(node) not in inner and (words := literal(node)) is not None and isinstance(node, ast.expr):
            if id(node) in docstrings or SENTENCE.search(words):
                exact = words.count("\n") == (node.end_lineno or node.lineno) - node.lineno
                yield Passage(without_code(words), node.lineno, exact)
        elif names and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield Passage(node.name.removeprefix("test_").replace("_", " "), node.lineno)
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = [token for token in tokens if token.type == tokenize.COMMENT]
    yield from of_comments((token.start[0], token.line[: token.start[1]] + token.string) for token in comments)


def has_docstring(node: ast.AST) -> bool:
    documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    return documented and ast.get_docstring(node, clean=False) is not None  # type: ignore[arg-type]


def literal(node: ast.AST) -> str | None:
    """The text of a string literal, with {} for each value of an f-string."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join("{}" if (words := literal(part)) is None else words for part in node.values)
    return None


def hash_comments(text: str) -> Iterator[tuple[int, str]]:
    """Lines that are comments or end in one, as far as the number sign, and lines of an alert's summary."""
    for number, line in enumerate(text.splitlines(), 1):
        if found := re.match(r"\s*#(?!!)|[^\"']*?\s#\s|\s*(?:summary|description|help): ", line):
            yield number, line[: found.end()].replace("summary: ", "#") + line[found.end() :]


def of_comments(lines: Iterable[tuple[int, str]]) -> Iterator[Passage]:
    """Comments, those on lines of their own joined with their neighbours."""
    whole: list[tuple[int, str]] = []
    for number, line in lines:
        code, _, comment = line.partition("#")
        if code.strip():
            yield Passage(without_code(comment), number)
        else:
            whole.append((number, comment))
    for _, run in groupby(enumerate(whole), lambda item: item[1][0] - item[0]):
        block = [item for _, item in run]
        yield Passage(without_code("\n".join(comment for _, comment in block)), block[0][0])


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[Passage] = []

    def handle_data(self, data: str) -> None:
        self.found.append(Passage(without_code(data), self.getpos()[0]))

    handle_comment = handle_data

    def handle_starttag(self, _tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [Passage(value, self.getpos()[0]) for name, value in attrs if value and name in LABELS]


def of_html(text: str) -> Iterator[Passage]:
    """Text, comments, and attributes that are shown or read out."""
    page = _Page()
    page.feed(text)
    yield from page.found


def of_script(text: str) -> Iterator[Passage]:
    """Comments, and literals that are sentences."""
    comments: list[tuple[int, str]] = []
    for match in SCRIPT_TEXT.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        if match[0].startswith("//"):
            before = text[text.rfind("\n", 0, match.start()) + 1 : match.start()]
            comments.append((line, before.replace("#", " ") + "#" + match[0][2:]))
        elif match[0].startswith("/*"):
            yield Passage(without_code(match[0][2:-2]), line)
        elif SENTENCE.search(words := SUBSTITUTION.sub("{}", match[0][1:-1])):
            yield Passage(without_code(words), line)
    yield from of_comments(comments)
