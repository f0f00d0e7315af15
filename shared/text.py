"""Checks of a request against the served model, and the end of its text."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from shared.arrays import INT32_BYTES, Int32, Int64
from shared.errors import BadInput, TooLong
from shared.messages.requests import FinishReason, Request
from shared.pinned import free_positions, given_positions, protected_tokens
from shared.tokenizer import Tokenizer

MAX_LABEL_TOKENS = 1 << 20  # of a request: 4 MiB, which a message of the bus holds


@dataclass(frozen=True, slots=True)
class FinishedText:
    """The text of an output, up to the end-of-text token."""

    text: str
    finish_reason: FinishReason
    written: Int64  # positions of its tokens, without the pinned ones
    stop_reason: int | str | None = None  # the stop token or stop string that ended it; None: neither

    @property
    def completion_tokens(self) -> int:
        return len(self.written)


class TextModel(Tokenizer):
    """The tokenizer of a model, with the checks and the texts of requests."""

    def encode_request(self, request: Request) -> Int32:
        """The prompt tokens of a request, from its prompt, messages or prompt_ids. Raises: BadInput."""
        given = [name for name in ("prompt", "messages", "prompt_ids") if getattr(request, name) is not None]
        if len(given) != 1:
            raise BadInput(
                f"give exactly one of prompt, messages and prompt_ids; given: {', '.join(given) or 'none'}", "prompt"
            )
        if request.prompt is not None:
            return self.encode_prompt(request.prompt)
        if request.messages is not None:
            return self.encode_chat(request.messages)
        assert request.prompt_ids is not None
        if len(request.prompt_ids) % 4:
            raise BadInput("prompt_ids must be int32 little-endian", "prompt_ids")
        return self.check_ids(np.frombuffer(request.prompt_ids, dtype="<i4").tolist(), "prompt_ids")

    def check_choices(
        self, request: Request, labels: Sequence[Int32], output_length: int, field: str = "choices"
    ) -> None:
        """`labels`: the tokens of each of the request's choices.

        Raises: BadInput for `field` if the request cannot have them.
        """
        if not labels:
            return
        excluded = request.pattern or request.pinned or request.ignore_eos
        if excluded or len(set(request.choices)) < len(request.choices):
            raise BadInput(
                f"{field}: labels must differ, and need a request without pattern, pinned tokens and ignore_eos", field
            )
        if (num_tokens := sum(map(len, labels))) > MAX_LABEL_TOKENS:
            raise BadInput(
                f"{field}: the labels have {num_tokens} tokens together; accepted: {MAX_LABEL_TOKENS}", field
            )
        room = min(request.max_tokens or output_length, output_length)
        longest = max(map(len, labels))
        if longest > room:
            raise BadInput(f"{field}: a label has {longest} tokens; the text may have {room}", field)

    def encode_choices(self, choices: Sequence[str], field: str = "choices") -> list[Int32]:
        """The tokens of each label of a choice. Raises: BadInput for `field`."""
        found = []
        for label in choices:
            ids = self.check_ids(self._encode(label, field), field)
            if not self.end_ids.isdisjoint(ids.tolist()):
                raise BadInput(f"{field} must not have tokens that end a text, got {label[:50]!r}", field)
            found.append(ids)
        return found

    def end_ids_of(self, request: Request) -> frozenset[int]:
        """The tokens that end the text of this request."""
        return (frozenset() if request.ignore_eos else self.end_ids).union(request.stop_token_ids)

    def ended(self, output_ids: Int32, request: Request, checked: int = 0) -> bool:
        """Whether the request's output holds a token that ends its text, or a stop string. `checked`: the
        number of first tokens that hold neither, as an earlier call has found."""
        end_ids = self.end_ids_of(request)
        if not end_ids.isdisjoint(output_ids[max(checked, protected_tokens(request, end_ids)) :].tolist()):
            return True
        if not request.stop:
            return False
        recent = output_ids[self._search_start(output_ids[:checked], request.stop) :]
        # The whole text confirms a find: `recent` may begin within a character.
        return all(first_stop(self.decode(ids), request.stop) is not None for ids in (recent, output_ids))

    def _search_start(self, checked_ids: Int32, stop: Sequence[str]) -> int:
        """The index of the token from which to search for stop strings: not after the start of any that begins in
        `checked_ids` and ends in later tokens. Characters are counted, as a token may be a part of one, and a special
        token has no text. At most max(len) - 1 characters of a stop string are in `checked_ids`; four more allow for
        characters that the cut divides: up to three replacement characters at the start, and one at the end."""
        if not self.is_byte_level:
            return 0
        tokens = characters = max(map(len, stop)) + 3
        while tokens < len(checked_ids) and len(self.decode(checked_ids[-tokens:])) < characters:
            tokens *= 2
        return max(len(checked_ids) - tokens, 0)

    def finish(self, output_ids: Int32, request: Request) -> FinishedText:
        """The text of the request's output, up to the first token that ends it, stop string, or `max_tokens`."""
        listed, end_ids = output_ids[: request.max_tokens].tolist(), self.end_ids_of(request)
        first = protected_tokens(request, end_ids)
        end = next((at for at, token in enumerate(listed[first:], first) if token in end_ids), None)
        text = self.decode(listed[:end])
        if (found := first_stop(text, request.stop)) is not None:
            cut, mark = found
            written = free_positions(request.pinned, num_tokens_of(text[:cut] + mark, listed[:end], self.decode))
            return FinishedText(text[:cut], FinishReason.STOP, written, mark)
        written = free_positions(request.pinned, len(listed[:end]))
        if end is None:
            is_filled = len(request.pinned) // INT32_BYTES >= len(listed) > 0  # up to its end, which the request gives
            return FinishedText(text, FinishReason.STOP if is_filled else FinishReason.LENGTH, written)
        is_eos = listed[end] in self.end_ids and not request.ignore_eos
        return FinishedText(text, FinishReason.STOP, written, None if is_eos else listed[end])

    def given_tokens(self, request: Request) -> int:
        """The pinned tokens that are text."""
        return len(given_positions(request, self.end_ids_of(request)))

    def fit_output(self, request: Request, prompt_tokens: int) -> tuple[int, int]:
        """The tokens of the prompt in the output's first block, and the output's length in whole blocks."""
        offset = self.card.block_offset(prompt_tokens, request.block_length)
        return offset, round_up_to_blocks(request.output_tokens, request.block_length, offset)

    def check_length(self, prompt_tokens: int, output_tokens: int, field: str) -> None:
        """Raises: TooLong naming `field` if the request is too long for the model."""
        if prompt_tokens + output_tokens > self.card.max_length:
            raise TooLong(
                f"{field}: the prompt has {prompt_tokens} tokens and the output {output_tokens}; "
                f"the model takes at most {self.card.max_length} together",
                field,
            )

    def check_tokens(self, *, stop_token_ids: Iterable[int], logit_bias: Iterable[int]) -> None:
        """Raises: BadInput if a token is not in the vocabulary."""
        for field, tokens in (("stop_token_ids", stop_token_ids), ("logit_bias", logit_bias)):
            outside = next((token for token in tokens if not 0 <= token < self.card.vocab_size), None)
            if outside is not None:
                end = self.card.vocab_size - 1
                raise BadInput(f"{field} must be in 0..{end}, the model's vocabulary; got {outside}", field)


def first_stop(text: str, stop: Sequence[str]) -> tuple[int, str] | None:
    """The position of the first stop string in `text`, and that string; None if it has none. Of those at one position
    it is the shortest, which a stream has first."""
    found = [(text.find(mark), mark) for mark in stop if mark and mark in text]
    return min(found, key=lambda each: (each[0], len(each[1])), default=None)


def num_tokens_of(beginning: str, tokens: Sequence[int], decode: Callable[[Sequence[int]], str]) -> int:
    """The number of first tokens whose text has this beginning."""
    return bisect_left(range(len(tokens)), True, key=lambda count: decode(tokens[:count]).startswith(beginning))


def round_up_to_blocks(output_tokens: int, block_length: int, offset: int = 0) -> int:
    """`output_tokens` rounded up to whole blocks, of which the first also has the prompt's last `offset` tokens."""
    return -(-(output_tokens + offset) // block_length) * block_length - offset
