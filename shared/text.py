"""Tokenizes and decodes text with the served model's tokenizer and chat template. Needs no torch."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers.decoders import ByteLevel

from shared.arrays import Int32, Int64
from shared.errors import BadInput, TooLong
from shared.messages.instances import ModelCard
from shared.messages.requests import ChatMessage, FinishReason, Request
from shared.model_families import block_length_of, max_length_of, usual_edit_threshold, with_defaults
from shared.pinned import free_positions, given_positions, protected_tokens
from shared.token_bytes import token_bytes

LONG_TEXT = 4_000  # characters; a longer text is tokenized in a thread, as it would block the event loop
MAX_CHARS_PER_TOKEN = 64  # mean over a prompt; a longer prompt is refused untokenized, as a megabyte takes a second
MAX_LABEL_TOKENS = 1 << 20  # of a request: 4 MiB, which a message of the bus holds
END_TOKENS = ("<|eot_id|>", "<|im_end|>")  # end-of-turn tokens of model families


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


class TextModel:
    """The tokenizer of a model, and the part of its configuration that the control plane needs."""

    def __init__(self, directory: Path, name: str) -> None:
        """Raises: BadInput if the directory has no usable configuration or tokenizer."""
        self.card = read_model_card(directory, name)
        self._tokenizer = _load_tokenizer(directory)
        self._backend = self._tokenizer.backend_tokenizer  # twice as fast as the wrapper of transformers
        self._backend.no_truncation()
        self._backend.no_padding()
        self.tool_template = _tool_template(self._tokenizer)
        ends = (self._tokenizer.convert_tokens_to_ids(token) for token in END_TOKENS)
        known = {end for end in ends if end is not None and end != self._tokenizer.unk_token_id}
        self.end_ids: frozenset[int] = frozenset(known | {self.card.eos_token_id})

    def encode_prompt(self, prompt: str, field: str = "prompt") -> Int32:
        """The tokens of a text without a chat template. Raises: BadInput for `field` if it is empty or far too long."""
        return self.check_ids(self._encode(prompt, field), field)

    def encode_chat(self, messages: Sequence[ChatMessage], field: str = "messages") -> Int32:
        """The tokens of a chat in the model's chat template. Raises: BadInput for `field` if it is empty or far too
        long."""
        return self.encode_turns([{"role": each.role, "content": each.content} for each in messages], field)

    def encode_turns(
        self,
        turns: Sequence[Mapping[str, Any]],
        field: str,
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        opens_reply: bool = True,
    ) -> Int32:
        """As `encode_chat`, of turns and tools as chat templates read them. `opens_reply`: whether the beginning of the
        model's reply follows."""
        if not any(turn["content"].strip() or turn.get("tool_calls") for turn in turns):
            raise BadInput(f"{field} must have some text", field=field)
        try:
            rendered = self._tokenizer.apply_chat_template(
                list(turns), tools=list(tools) or None, add_generation_prompt=opens_reply, tokenize=False
            )
        except Exception as error:  # a template is a program of the model and can raise anything
            raise BadInput(f"the model's chat template refuses these messages: {error}", field) from None
        return self.check_ids(self._encode(rendered, field), field)

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

    def _encode(self, text: str, field: str) -> list[int]:
        """Raises: TooLong naming `field` if the text is too long for the model in any tokenization."""
        if len(text) > MAX_CHARS_PER_TOKEN * self.card.max_length:
            raise TooLong(
                f"{field} has {len(text)} characters; the model takes at most {self.card.max_length} tokens", field
            )
        if len(text) <= LONG_TEXT:
            encoding = self._backend.encode(text, add_special_tokens=False)
        else:  # a batch of one: only batches release the interpreter lock
            [encoding] = self._backend.encode_batch_fast([text], add_special_tokens=False)
        ids: list[int] = encoding.ids
        return ids

    def decode(self, ids: Sequence[int] | Int32) -> str:
        """The text of output tokens, without special tokens."""
        listed = np.asarray(ids, dtype=np.int64).tolist()
        if self._tokenizer.clean_up_tokenization_spaces:
            return str(self._tokenizer.decode(listed, skip_special_tokens=True))
        return str(self._backend.decode(listed, skip_special_tokens=True))

    def token_bytes(self) -> list[bytes]:
        """As `token_bytes`. Raises: BadInput if the tokenizer is not byte-level."""
        return token_bytes(self._backend)

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
        if not isinstance(self._backend.decoder, ByteLevel) or self._tokenizer.clean_up_tokenization_spaces:
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
        written = free_positions(request.pinned, len(listed[:end]))
        cut = first_stop(text, request.stop)
        if cut is not None:
            mark = next(mark for mark in request.stop if mark and text.startswith(mark, cut))
            return FinishedText(text[:cut], FinishReason.STOP, written, mark)
        if end is None:
            is_filled = len(request.pinned) // 4 >= len(listed) > 0  # up to its end, which the request gives
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

    def check_ids(self, ids: Sequence[int], field: str) -> Int32:
        """`ids` as prompt tokens. Raises: BadInput naming `field` if one is invalid."""
        if not ids:
            raise BadInput(f"{field} must not be empty", field)
        if min(ids) < 0 or max(ids) >= self.card.vocab_size:
            raise BadInput(f"{field} has token ids outside 0..{self.card.vocab_size - 1}", field)
        if self.card.mask_token_id in ids:
            raise BadInput(f"{field} must not contain the mask token", field)
        return np.asarray(ids, dtype=np.int32)

    def check_stop_token_ids(self, ids: Sequence[int]) -> None:
        """Raises: BadInput if one is not in the vocabulary."""
        outside = next((token for token in ids if not 0 <= token < self.card.vocab_size), None)
        if outside is not None:
            raise BadInput(
                f"stop_token_ids must be in 0..{self.card.vocab_size - 1}, the model's vocabulary; got {outside}",
                "stop_token_ids",
            )


def first_stop(text: str, stop: Sequence[str]) -> int | None:
    """The position of the first stop string in `text`; None if it has none."""
    found = [text.find(mark) for mark in stop if mark and mark in text]
    return min(found) if found else None


def round_up_to_blocks(output_tokens: int, block_length: int, offset: int = 0) -> int:
    """`output_tokens` rounded up to whole blocks, of which the first also has the prompt's last `offset` tokens."""
    return -(-(output_tokens + offset) // block_length) * block_length - offset


def _load_tokenizer(directory: Path) -> Any:
    """A directory's tokenizer, from tokenizer.json or Qwen2's files (Dream); never runs code of the model."""
    import transformers  # noqa: PLC0415  (slow to import)

    fast = (directory / "tokenizer.json").exists()
    kind: Any = transformers.PreTrainedTokenizerFast if fast else transformers.Qwen2Tokenizer  # lazy attributes
    try:
        return kind.from_pretrained(directory)
    except (OSError, ValueError, TypeError) as error:
        first_line = str(error).partition("\n")[0]
        raise BadInput(f"no usable tokenizer in {directory}: {first_line}", field="model") from None


def _tool_template(tokenizer: Any) -> str:
    """The chat template of chats with tools; empty: the model has none."""
    try:
        return str(tokenizer.get_chat_template(tools=[{}]))
    except ValueError:
        return ""


def read_model_card(directory: Path, name: str) -> ModelCard:
    """The card from config.json. Raises: BadInput if the file or a value is missing, or the architecture is not
    supported."""
    path = directory / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(f"cannot read {path}: {error}", field="model") from None
    try:
        config = with_defaults(config)
        return ModelCard(
            name=name,
            max_length=max_length_of(config),
            mask_token_id=int(config["mask_token_id"]),
            eos_token_id=int(config["eos_token_id"]),
            vocab_size=int(config.get("embedding_size") or config["vocab_size"]),
            block_length=block_length_of(config),
            edit_threshold=usual_edit_threshold(config, name),
        )
    except KeyError as error:
        raise BadInput(f"{path} lacks the key {error}", field="model") from None
    except (AttributeError, TypeError, ValueError) as error:
        raise BadInput(f"{path}: {error}", field="model") from None
