"""The thoughts that a model writes before its answer, between marks that its chat template names. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from shared.text import TextModel


@dataclass(frozen=True, slots=True)
class Thoughts:
    """The marks around thoughts."""

    opening: str
    closing: str
    heading: str = ""  # of each thought
    are_special: bool = False  # the marks are special tokens, so that they are no text of an answer
    is_open: bool = False  # the prompt has the opening mark

    def split(self, text: str, is_whole: bool) -> tuple[str, str]:
        """The thought that a text begins with, and the answer behind it. `is_whole`: nothing follows; otherwise both
        begin those of a longer text, and what may become a mark is in neither."""
        start = 0
        if not self.is_open:
            start = len(text) - len(text.lstrip())
            if not text.startswith(self.opening, start):
                is_cut = not is_whole and self.opening.startswith(text[start:])
                return "", "" if is_cut else self._without_more(text)
            start += len(self.opening)
        thought, closing, answer = text[start:].partition(self.closing)
        if not closing and not is_whole:
            thought = thought[: _cut_mark(thought, self.closing)]
        thought = thought.lstrip()
        if not closing and not is_whole and self.heading.startswith(thought):
            thought = ""
        return thought.removeprefix(self.heading).strip(), self._without_more(answer.lstrip())

    def _without_more(self, answer: str) -> str:
        """The answer without the thoughts in it."""
        if not self.are_special:
            return answer
        marks = re.escape(self.opening), re.escape(self.closing)
        return re.sub(rf"{marks[0]}.*?(?:{marks[1]}|\Z)", "", answer, flags=re.DOTALL)


KINDS = (
    Thoughts("<|channel>", "<channel|>", "thought\n", are_special=True),  # Gemma 4's
    Thoughts("<think>", "</think>"),  # those of Qwen, SDAR and Ling
)


def thoughts_of(template: str) -> Thoughts | None:
    """Those that a chat template knows; None: none."""
    return next((kind for kind in KINDS if kind.closing in template), None)


def find_thoughts(text: TextModel, options: Mapping[str, Any]) -> Thoughts | None:
    """Those of the model's replies; None: it has none. `options`: of the chat template."""
    found = thoughts_of(text.tool_template)
    if found is None:
        return None
    return replace(found, is_open=text.reply_opening(options).rstrip().endswith(found.opening))


def _cut_mark(text: str, mark: str) -> int:
    """Where a beginning of the mark ends the text; its length if none does."""
    lengths = range(min(len(mark) - 1, len(text)), 0, -1)
    return len(text) - next((length for length in lengths if text.endswith(mark[:length])), 0)
