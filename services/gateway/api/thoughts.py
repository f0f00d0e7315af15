"""The thoughts that a model writes before its answer, between marks that its chat template names. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from shared.text import TextModel


@dataclass(frozen=True, slots=True)
class ThoughtMarks:
    """The marks around thoughts."""

    opening: str
    closing: str
    heading: str = ""  # a label behind the opening mark, which is no part of the thought
    are_special: bool = False  # the marks are special tokens: a text has them whole, and an answer has none
    is_open: bool = False  # the prompt ends with the opening mark, so that the reply begins within a thought

    def split(self, text: str, is_whole: bool) -> tuple[str, str]:
        """The thought that a text begins with, and the answer behind it. `is_whole`: nothing follows. Otherwise both
        are the beginnings of the later ones, without what may become a mark."""
        start = 0
        if not self.is_open:
            start = len(text) - len(text.lstrip())
            if not text.startswith(self.opening, start):
                may_open = not is_whole and self.opening.startswith(text[start:])
                return "", "" if may_open else self._without_more(text, is_whole)
            start += len(self.opening)
        thought, closing, answer = text[start:].partition(self.closing)
        if not closing and not is_whole:
            thought = thought[: _start_of_partial(thought, self.closing)]
        thought = thought.lstrip()
        if not closing and not is_whole and self.heading.startswith(thought):
            thought = ""
        return thought.removeprefix(self.heading).strip(), self._without_more(answer.lstrip(), is_whole)

    def _without_more(self, answer: str, is_whole: bool) -> str:
        """The answer without later thoughts, if the marks are special tokens; others are text of the answer."""
        if not self.are_special:
            return answer
        if not is_whole:
            answer = answer[: _start_of_partial(answer, self.opening)]
        marks = re.escape(self.opening), re.escape(self.closing)
        return re.sub(rf"{marks[0]}.*?(?:{marks[1]}|\Z)", "", answer, flags=re.DOTALL)


KINDS = (
    ThoughtMarks("<|channel>", "<channel|>", "thought\n", are_special=True),  # Gemma 4's
    ThoughtMarks("<think>", "</think>"),  # those of Qwen, SDAR and Ling
)


def thoughts_of(template: str) -> ThoughtMarks | None:
    """The marks that a chat template has; None: none."""
    return next((kind for kind in KINDS if kind.closing in template), None)


def find_thoughts(text: TextModel, options: Mapping[str, Any]) -> ThoughtMarks | None:
    """The marks of the model's replies; None: it has none. `options`: of the chat template."""
    found = thoughts_of(text.tool_template)
    if found is None:
        return None
    return replace(found, is_open=text.reply_opening(options).rstrip().endswith(found.opening))


def _start_of_partial(text: str, mark: str) -> int:
    """The index where a partial mark at the end of the text starts; the text's length if there is none."""
    lengths = range(min(len(mark) - 1, len(text)), 0, -1)
    return len(text) - next((length for length in lengths if text.endswith(mark[:length])), 0)
