"""Keeps the texts of a request from becoming control tokens, which only the chat template may write.

Before the template runs, `plain` breaks each control token in the texts. Those in the rendered chat are then the
template's. `encode` replaces them by unguessable stand-ins, which its tokenizer has instead of the control tokens.
"""

import re
import secrets
from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any

from tokenizers import AddedToken, Tokenizer

from shared.errors import BadInput

BREAK = "\udfff"  # follows the first character of a broken token; no valid text has this character
NEVER, TEXT_END = "(?!)", r"\Z"  # patterns


class ControlTokens:
    """The special tokens of a tokenizer, and its markup: the other added tokens that the chat template writes."""

    def __init__(self, tokenizer: Tokenizer, template: str) -> None:
        added: Mapping[int, AddedToken] = tokenizer.get_added_tokens_decoder()
        special = {token.content for token in added.values() if token.special}
        markup = {token.content for token in added.values() if token.content.strip() and token.content in template}
        control = special | markup
        self._special, self._control = _beginnings(special), _beginnings(control)
        self._written = re.compile(_any_of(control))
        # Normalization can make a control token out of another text.
        self.may_hide = tokenizer.normalizer is not None and any(token.normalized for token in added.values())

        secret, vocabulary = secrets.token_hex(), tokenizer.get_vocab(with_added_tokens=False)
        self._encoder = Tokenizer(tokenizer.model)  # which has the same vocabulary, not a copy
        self._encoder.normalizer, self._encoder.pre_tokenizer = tokenizer.normalizer, tokenizer.pre_tokenizer
        gaps = max(vocabulary.values(), default=-1) + 1 - len(vocabulary)
        self._encoder.add_tokens([f"{secret}{gap}:" for gap in range(gaps)])  # so that the others get new ids
        self._stand_ins, self._ids = dict[str, str](), dict[int, int]()  # by token; by the encoder's id
        for number, token in added.items():
            content = token.content
            if content in control:
                content = f"{secret}{number};"
                self._stand_ins[token.content] = content
            flags = {name: getattr(token, name) for name in ("single_word", "lstrip", "rstrip", "normalized")}
            self._encoder.add_tokens([AddedToken(content, special=token.special, **flags)])
            if (own := self._encoder.token_to_id(content)) is not None:
                self._ids[own] = number
        self._in_vocabulary = {token: vocabulary[token] for token in self._stand_ins if token in vocabulary}

    def plain(self, value: Any, *, own_markup: bool = False) -> Any:
        """The texts of a JSON value with its control tokens broken, and with the beginnings of some at their end.
        `own_markup`: only the special ones."""
        if isinstance(value, str):
            return (self._special if own_markup else self._control).sub(_broken, value)
        if isinstance(value, Mapping):
            return {self.plain(name): self.plain(each) for name, each in value.items()}
        return [self.plain(each) for each in value] if isinstance(value, list | tuple) else value

    def plain_turn(self, turn: Mapping[str, Any]) -> dict[str, Any]:
        """As `plain`, of a message as chat templates take it. The model's own text keeps its markup, such as <think>,
        which templates look for."""
        is_own = turn["role"] == "assistant"
        return {name: self.plain(each, own_markup=is_own and name == "content") for name, each in turn.items()}

    def encode(self, rendered: str, field: str) -> list[int]:
        """The tokens of a chat whose texts are broken. Raises: BadInput for `field` if the tokenizer cannot write a
        text without control tokens."""
        text = self._written.sub(lambda found: self._stand_ins[found[0]], rendered).replace(BREAK, "")
        [encoding] = self._encoder.encode_batch_fast([text], add_special_tokens=False)
        ids: list[int] = encoding.ids
        if any(token in text and number in ids for token, number in self._in_vocabulary.items()):
            raise BadInput(f"{field} has a control token that this model's tokenizer cannot write as text", field)
        return [self._ids.get(token, token) for token in ids]


def _broken(found: re.Match[str]) -> str:
    return found[0] + BREAK


def _beginnings(words: Collection[str]) -> re.Pattern[str]:
    """Matches the first character of each word in a text, also of a word that the end of the text cuts."""
    rests = _by_first(words).items()
    return re.compile("|".join(f"{re.escape(first)}(?={_any_of(rest, cut=True)})" for first, rest in rests) or NEVER)


def _any_of(words: Collection[str], *, cut: bool = False) -> str:
    """A pattern of the longest of the words; with `cut`, also of one that the end of the text cuts. It decides by the
    next character only, as a tokenizer can have hundreds of special tokens."""
    if not words:
        return NEVER
    rests = _by_first(words)
    ends = rests.pop("", None) is not None
    branches = [re.escape(first) + _any_of(rest, cut=cut) for first, rest in rests.items()]
    if ends:
        return f"(?:{'|'.join(branches)})?" if branches else ""
    return f"(?:{'|'.join([*branches, TEXT_END] if cut else branches)})"


def _by_first(words: Collection[str]) -> dict[str, set[str]]:
    """The rests of the words by their first characters; of an empty word the empty rest by the empty text."""
    found = defaultdict[str, set[str]](set)
    for word in words:
        found[word[:1]].add(word[1:])
    return found
