"""Texts of messages and tools have no control tokens, whatever the tokenizer and the chat template."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from services.gateway.api.prompts import call, turn
from services.gateway.api.tool_calls.call_syntax import find_call_syntax
from services.gateway.api.tool_calls.use import ToolUse, UsableTool
from shared.errors import BadInput
from shared.text import TextModel
from tests.support.present import present

ROOT = Path(__file__).parents[3]
QWEN = (
    "{% if tools %}<|im_start|>system\n<tools>{% for tool in tools %}\n{{ tool | tojson }}{% endfor %}\n</tools>\n"
    "Answer in <tool_call></tool_call>.<|im_end|>\n{% endif %}"
    "{% for message in messages %}{% set content = message.content %}"
    "{% if message.role == 'assistant' and '</think>' in content %}"
    "{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "<|im_start|>{{ 'user' if message.role == 'tool' else message.role }}\n"
    "{% if message.role == 'tool' %}<tool_response>\n{{ content }}\n</tool_response>{% else %}{{ content }}{% endif %}"
    "{% for call in message.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n'
    "</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
LLAMA = (
    "{{ bos_token }}{% for message in messages %}<|start_header_id|>{{ message.role }}<|end_header_id|>\n\n"
    "{{ message.content | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
SENTENCES = [
    "the model reads <|im_start|>user and <tool_call> as text, then 12 + 30 = 42.",
    "def f(x): return [x < 3 | x > 4]  # Äpfel, 苹果 🍎",
] * 3


def write_model(directory: Path, tokenizer: Tokenizer, template: str, special: Sequence[str]) -> Path:
    directory.mkdir(parents=True)
    number = {token: tokenizer.token_to_id(token) for token in special}
    config = json.loads((ROOT / "models" / "demo" / "config.json").read_text())
    config |= {"mask_token_id": number[special[0]], "eos_token_id": number[special[1]], "vocab_size": 5000}
    config |= {"embedding_size": 5000}
    written = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template, "bos_token": special[2]}
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "tokenizer_config.json").write_text(json.dumps({**written, "clean_up_tokenization_spaces": False}))
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


def qwen_like(directory: Path) -> Path:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(r"[\p{L}]+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+"), "isolated")
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, level])
    tokenizer.decoder = decoders.ByteLevel()
    train(tokenizer, [])
    special = ["<|mask|>", "<|im_end|>", "<|im_start|>", "<|endoftext|>"]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    markup = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in markup])
    return write_model(directory, tokenizer, QWEN, special)


def llama_like(directory: Path) -> Path:
    """Its special tokens take the space beside them, and are normalized."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|mask|>", "<|eot_id|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>"]
    special += [f"<|reserved_special_token_{number}|>" for number in range(250)]
    train(tokenizer, [])
    tokenizer.add_special_tokens([AddedToken(token, normalized=True, rstrip=True) for token in special])
    return write_model(directory, tokenizer, LLAMA, special)


def sentencepiece_like(directory: Path) -> Path:
    """Its special tokens are in the vocabulary that texts are cut into, which has gaps."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))  # noqa: S106
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Sequence([decoders.Metaspace(), decoders.ByteFallback(), decoders.Fuse()])
    special = ["<|mask|>", "<|eot_id|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>"]
    train(tokenizer, ["<unk>", *special, *(f"<0x{byte:02X}>" for byte in range(256))])
    stored = json.loads(tokenizer.to_str())
    stored["added_tokens"] = [token for token in stored["added_tokens"] if not token["content"].startswith("<0x")]
    last = max(stored["model"]["vocab"], key=stored["model"]["vocab"].get)
    stored["model"]["vocab"][last] += 7
    return write_model(directory, Tokenizer.from_str(json.dumps(stored)), LLAMA, special)


def train(tokenizer: Tokenizer, special: Sequence[str]) -> None:
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    kind = trainers.BpeTrainer(vocab_size=700, special_tokens=list(special), initial_alphabet=alphabet)
    tokenizer.train_from_iterator(SENTENCES, kind)


MODELS: Mapping[str, Callable[[Path], Path]] = {
    "demo": lambda _: ROOT / "models" / "demo",
    "demo-block": lambda _: ROOT / "models" / "demo-block",
    "qwen": qwen_like,
    "llama": llama_like,
    "sentencepiece": sentencepiece_like,
}


@pytest.fixture(scope="module", params=MODELS)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return MODELS[request.param](tmp_path_factory.mktemp("models") / request.param)


@pytest.fixture(scope="module")
def text(directory: Path) -> TextModel:
    return TextModel(directory, directory.name)


@pytest.fixture(scope="module")
def before(directory: Path) -> TextModel:
    """Reads control tokens in messages, too."""
    return TextModel(directory, directory.name, reads_control=True)


def control_of(model: TextModel) -> dict[int, str]:
    """The special tokens, and the markup of chat templates."""
    added = model._backend.get_added_tokens_decoder()
    return {number: token.content for number, token in added.items() if token.special or token.content[1:2].isalpha()}


def hostile_texts(model: TextModel) -> list[str]:
    tokens = list(control_of(model).values())[:8]
    halves = [half for token in tokens for half in (token[: len(token) // 2], token[len(token) // 2 :])]
    return [*tokens, *halves, "".join(tokens), f"a{tokens[1]}{tokens[2]}b", "<|<|x|>|>", "<"]


def controls(model: TextModel, turns: Sequence[Mapping[str, Any]], tools: Sequence[Any] = ()) -> list[int]:
    """The control tokens of a chat."""
    ids = model.encode_turns(turns, "messages", tools).tolist()
    known = control_of(model)
    return [token for token in ids if token in known]


def test_no_text_of_a_message_becomes_a_control_token(text: TextModel) -> None:
    roles = ["system", "user", "assistant", "user"]
    expected = controls(text, [turn(role, "x") for role in roles])
    special = [token.content for token in text._backend.get_added_tokens_decoder().values() if token.special]
    for hostile in hostile_texts(text):
        contents = [f"{hostile}x{hostile}"] * 2 + [f"{special[0]}x{special[-1]}", hostile]  # the model has markup
        turns = [turn(role, content) for role, content in zip(roles, contents, strict=True)]
        assert controls(text, turns) == expected, hostile


def test_the_text_of_a_message_remains(text: TextModel) -> None:
    for hostile in hostile_texts(text):
        ids = text.encode_turns([turn("user", f"see {hostile} here")], "messages")
        assert f"see {hostile} here" in text._backend.decode(ids.tolist(), skip_special_tokens=False)


def test_no_part_of_a_tool_becomes_a_control_token(text: TextModel) -> None:
    def conversation(name: str, value: str) -> tuple[list[Mapping[str, Any]], Sequence[Any]]:
        schema = {"type": "object", "properties": {name: {"description": value}}}
        tools = [UsableTool("tools[0]", "f", value, schema, None)]
        called = [call("c", "f", {name: [value]}), call("c", f"f{value}", value), call("c", "f", json.dumps({name: 1}))]
        turns = [turn("user", "x"), turn("assistant", "", called), turn("tool", value, result_of="c")]
        chat = ToolUse(find_call_syntax(text.tool_template), tools).chat(turns)
        return list(chat.turns), chat.tools

    expected = controls(text, *conversation("x", "x"))
    for hostile in hostile_texts(text):
        assert controls(text, *conversation(hostile, hostile)) == expected, hostile


@given(contents=st.lists(st.text(st.characters(codec="utf-8"), min_size=1).filter(str.strip), min_size=1, max_size=3))
def test_other_texts_have_the_tokens_that_they_had(text: TextModel, before: TextModel, contents: list[str]) -> None:
    assume(not any(token in content for token in control_of(text).values() for content in contents))
    turns = [turn(role, content) for role, content in zip(("user", "assistant", "user"), contents, strict=False)]
    ids = before.encode_turns(turns, "messages").tolist()
    assert text.encode_turns(turns, "messages").tolist() == ids
    # The way of texts with control tokens gives the same ones.
    rendered = before._tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    assert present(text._control).encode(rendered, "messages") == ids


def test_control_tokens_are_read_where_the_setting_wants_them(before: TextModel) -> None:
    end = before.card.eos_token_id
    assert controls(before, [turn("user", f"x{control_of(before)[end]}x")]).count(end) == (
        controls(before, [turn("user", "x")]).count(end) + 1
    )


def test_control_tokens_of_plain_prompts_are_read(text: TextModel) -> None:
    end = text.card.eos_token_id
    assert end in text.encode_prompt(f"x{control_of(text)[end]}x").tolist()


def test_markup_in_the_models_own_turn_remains_markup(tmp_path: Path) -> None:
    text = TextModel(qwen_like(tmp_path / "qwen"), "qwen")
    ids = text.encode_turns([turn("user", "x"), turn("assistant", "<think>y</think>z"), turn("user", "x")], "messages")
    assert "y" not in text._backend.decode(ids.tolist(), skip_special_tokens=False)


def test_a_text_without_plain_tokens_is_refused(tmp_path: Path) -> None:
    words = {"a": 0, "<|mask|>": 1, "<s>": 2, "<x>": 3, "?": 4}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="?"))  # noqa: S106
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = ["<|mask|>", "<s>", "<x>"]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    template = "{% for message in messages %}<x> {{ message.content }} {% endfor %}"
    text = TextModel(write_model(tmp_path / "words", tokenizer, template, special), "words")
    with pytest.raises(BadInput, match="cannot write as text") as refused:
        text.encode_turns([turn("user", "a <s> a")], "messages")
    assert refused.value.field == "messages"
    assert text.encode_turns([turn("user", "a b <")], "messages").tolist() == [3, 0, 4, 4]


def test_the_message_of_a_template_that_refuses_a_text_has_no_mark(tmp_path: Path) -> None:
    text = TextModel(qwen_like(tmp_path / "qwen"), "qwen")
    text._tokenizer.chat_template = "{{ raise_exception(messages[0].content) }}"
    with pytest.raises(BadInput, match=r"messages: x<\|im_end\|>$"):
        text.encode_turns([turn("user", "x<|im_end|>")], "messages")
