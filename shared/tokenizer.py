"""The tokenizer and the chat template of the served model. Needs no torch."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers.decoders import ByteLevel

from shared.arrays import Int32
from shared.control_tokens import BREAK, ControlTokens
from shared.errors import BadInput, TooLong
from shared.messages.requests import ChatMessage
from shared.model_files import read_card_and_ends, read_json
from shared.token_bytes import added_bytes, byte_level_bytes, other_bytes, token_bytes

LONG_TEXT = 4_000  # characters; a longer text is tokenized in a thread, as it would block the event loop
MAX_CHARS_PER_TOKEN = 64  # mean over a prompt; a longer prompt is refused untokenized, as a megabyte takes a second
ROLES = {"developer": "system"}  # chat templates have no role `developer`
TOKENIZER_JSON = ("tokenizer.json", "vocab.json", "tokenizer_config.json", "chat_template.json")
END_TOKENS = ("<|eot_id|>", "<|im_end|>", "<turn|>")  # end-of-turn tokens of model families
# Special tokens that a text has: Gemma's around calls, their texts, and thoughts
MARKS = ("<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>")


class Tokenizer:
    """Turns texts and chats into tokens, and tokens into text."""

    def __init__(self, directory: Path, name: str, *, reads_control: bool = False) -> None:
        """`reads_control`: whether to read control tokens in the texts of chats, too.

        Raises: BadInput if the directory has no usable configuration or tokenizer.
        """
        self.card, ends = read_card_and_ends(directory, name)
        self._tokenizer = _load_tokenizer(directory)
        self._backend = self._tokenizer.backend_tokenizer  # twice as fast as the wrapper of transformers
        self._backend.no_truncation()
        self._backend.no_padding()
        self._added = self._backend.get_added_tokens_decoder()
        plain = [number for number, token in self._added.items() if not token.special]
        own = self._backend.get_vocab(with_added_tokens=False).values()  # may have gaps
        last, end = max(*own, *plain, 0), self.card.vocab_size
        if last >= end:  # special tokens may lack rows, as texts do not have them
            raise BadInput(f"the tokenizer has tokens to {last}, the model 0..{end - 1}: resize the embedding", "model")
        self._in_text = {number for number, token in self._added.items() if token.content in MARKS}
        self._first_ids = _first_ids(self._backend)
        self.tool_template = _tool_template(self._tokenizer)
        self._template_words = frozenset(re.findall(r"\w+", self.tool_template))
        template = str(self._tokenizer.chat_template)
        self._control = None if reads_control else ControlTokens(self._backend, template)
        ends += [self._tokenizer.convert_tokens_to_ids(token) for token in END_TOKENS]
        ends += [self._tokenizer.eos_token_id]
        known = {end for end in ends if end is not None and end != self._tokenizer.unk_token_id}
        self.end_ids: frozenset[int] = frozenset(end for end in known if end < self.card.vocab_size)

    @property
    def is_byte_level(self) -> bool:
        """Whether the text of tokens is the text of the first ones and that of the others, but for cut characters."""
        return isinstance(self._backend.decoder, ByteLevel) and not self._tokenizer.clean_up_tokenization_spaces

    def encode_prompt(self, prompt: str, field: str = "prompt") -> Int32:
        """The tokens of a prompt without a chat template, after those that begin every prompt, such as Gemma's. Raises:
        BadInput for `field` if it is empty or far too long."""
        ids = self.encode_text(prompt, field)
        begins = ids[: len(self._first_ids)].tolist() == self._first_ids
        return ids if begins else np.concatenate([np.asarray(self._first_ids, dtype=np.int32), ids])

    def encode_text(self, text: str, field: str) -> Int32:
        """The tokens of a text. Raises: BadInput for `field` if it is empty or far too long."""
        return self.check_ids(self._encode(text, field), field)

    def count_tokens(self, text: str) -> int:
        """The number of tokens of any text."""
        return len(self._backend.encode(text, add_special_tokens=False).ids)

    def encode_chat(self, messages: Sequence[ChatMessage], field: str = "messages") -> Int32:
        """The tokens of a chat in the model's chat template. Raises: BadInput for `field` if it is empty or far too
        long."""
        turns = [{"role": ROLES.get(each.role, each.role), "content": each.content} for each in messages]
        return self.encode_turns(turns, field)

    def encode_turns(
        self,
        turns: Sequence[Mapping[str, Any]],
        field: str,
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        opens_reply: bool = True,
        options: Mapping[str, Any] | None = None,
    ) -> Int32:
        """As `encode_chat`, of turns and tools as chat templates read them. `opens_reply`: whether the beginning of the
        model's reply follows. `options`: further variables; those that the template does not read have no effect."""
        if not any(turn["content"].strip() or turn.get("tool_calls") for turn in turns):
            raise BadInput(f"{field} must have some text", field=field)
        if not self._tokenizer.chat_template:
            raise BadInput("the model has no chat template; use /v1/completions", field)
        control = self._control
        read = self._read_options(options or {})
        if control is not None:
            turns, tools, read = [control.plain_turn(turn) for turn in turns], control.plain(tools), control.plain(read)
        try:
            rendered = self._tokenizer.apply_chat_template(
                list(turns), tools=list(tools) or None, add_generation_prompt=opens_reply, tokenize=False, **read
            )
        except Exception as error:  # a template is a program of the model and can raise anything
            reason = str(error).replace(BREAK, "")
            raise BadInput(f"the model's chat template refuses these messages: {reason}", field) from None
        is_broken = control is not None and (control.may_hide or BREAK in rendered)
        return self.check_ids(self._encode(rendered, field, control if is_broken else None), field)

    def reply_opening(self, options: Mapping[str, Any]) -> str:
        """The text with which the chat template begins the model's reply; empty if it refuses a chat of one message."""
        read = self._read_options(options)
        chat = [{"role": "user", "content": "hello"}]
        with suppress(Exception):  # as in encode_turns
            without, whole = (
                self._tokenizer.apply_chat_template(chat, add_generation_prompt=opens, tokenize=False, **read)
                for opens in (False, True)
            )
            return str(whole).removeprefix(without)
        return ""

    def check_template(self) -> None:
        """Raises: BadInput if the model's chat template cannot write a chat of one message."""
        if self._tokenizer.chat_template:
            ids = self.encode_chat([ChatMessage(role="user", content="hello")], "chat_template")
            if "hello" not in self.decode(ids):
                raise BadInput("the model's chat template leaves out contents that are texts and not lists of parts")

    def template_reads(self, option: str) -> bool:
        """Whether the chat template may have a variable of this name."""
        return option in self._template_words

    def _read_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in options.items() if self.template_reads(name)}

    def _encode(self, text: str, field: str, control: ControlTokens | None = None) -> list[int]:
        """`control`: has broken the control tokens of the text.

        Raises: TooLong naming `field` if the text is too long for the model in any tokenization; BadInput as `control`.
        """
        if len(text) > MAX_CHARS_PER_TOKEN * self.card.max_length:
            raise TooLong(
                f"{field} has {len(text)} characters; the model takes at most {self.card.max_length} tokens", field
            )
        if control is not None:
            return control.encode(text, field)
        if len(text) <= LONG_TEXT:
            encoding = self._backend.encode(text, add_special_tokens=False)
        else:  # a batch of one: only batches release the interpreter lock
            [encoding] = self._backend.encode_batch_fast([text], add_special_tokens=False)
        ids: list[int] = encoding.ids
        return ids

    def decode(self, ids: Sequence[int] | Int32, *, with_special: bool = False) -> str:
        """The text of output tokens, with MARKS, without other special tokens unless `with_special`."""
        listed = np.asarray(ids, dtype=np.int64).tolist()
        if self._in_text.isdisjoint(listed):
            return self._decode(listed, with_special=with_special)
        parts = groupby(listed, key=self._in_text.__contains__)
        return "".join(self._decode(list(part), with_special=with_special or kept) for kept, part in parts)

    def _decode(self, listed: list[int], *, with_special: bool) -> str:
        if self._tokenizer.clean_up_tokenization_spaces:
            return str(self._tokenizer.decode(listed, skip_special_tokens=not with_special))
        return str(self._backend.decode(listed, skip_special_tokens=not with_special))

    def bytes_of(self, token: int) -> bytes:
        """The bytes that a token adds to a text; empty: none, as a special token."""
        if (added := self._added.get(token)) is not None:
            return added.content.encode() if token in self._in_text else added_bytes(added)
        piece = self._backend.id_to_token(token) or ""
        return byte_level_bytes(piece) if isinstance(self._backend.decoder, ByteLevel) else other_bytes(piece)

    def token_bytes(self) -> list[bytes]:
        """As `token_bytes`. Raises: BadInput if the tokenizer is not byte-level."""
        return token_bytes(self._backend)

    def check_ids(self, ids: Sequence[int], field: str) -> Int32:
        """`ids` as prompt tokens. Raises: BadInput naming `field` if one is invalid."""
        if not ids:
            raise BadInput(f"{field} must not be empty", field)
        if min(ids) < 0 or max(ids) >= self.card.vocab_size:
            raise BadInput(f"{field} has token ids outside 0..{self.card.vocab_size - 1}", field)
        if self.card.mask_token_id in ids:
            raise BadInput(f"{field} must not contain the mask token", field)
        return np.asarray(ids, dtype=np.int32)


def _load_tokenizer(directory: Path) -> Any:
    """A directory's tokenizer, from tokenizer.json or Qwen2's files (Dream); never runs code of the model."""
    import transformers  # noqa: PLC0415  (slow to import)

    fast = (directory / "tokenizer.json").is_file()
    if not (fast or all((directory / name).is_file() for name in ("vocab.json", "merges.txt"))):
        raise BadInput(f"no tokenizer in {directory}: it needs tokenizer.json, or vocab.json and merges.txt", "model")
    kind: Any = transformers.PreTrainedTokenizerFast if fast else transformers.Qwen2Tokenizer  # lazy attributes
    try:
        *_, config, processor = [read_json(directory / name) for name in TOKENIZER_JSON]  # an error names the file
        tokenizer = kind.from_pretrained(directory)
    except Exception as error:  # those of a damaged tokenizer.json have no class of their own
        reason = str(error).strip().partition("\n")[0]
        raise BadInput(f"no usable tokenizer in {directory}: {reason}", field="model") from None
    if not (fast or re.match("Qwen2|Dream", named := str(config.get("tokenizer_class") or "Qwen2"))):
        raise BadInput(f"{directory}/vocab.json is a {named}'s; accepted: Qwen2's, Dream's, or tokenizer.json", "model")
    tokenizer.chat_template = tokenizer.chat_template or processor.get("chat_template")
    return tokenizer


def _first_ids(backend: Any) -> list[int]:
    """The tokens that begin every text by the tokenizer's own rules; most have none."""
    plain, whole = (backend.encode("a", add_special_tokens=flag).ids for flag in (False, True))
    return whole[: whole.index(plain[0])] if plain else []


def _tool_template(tokenizer: Any) -> str:
    """The chat template of chats with tools; empty: the model has none."""
    try:
        return str(tokenizer.get_chat_template(tools=[{}]))
    except ValueError:
        return ""
