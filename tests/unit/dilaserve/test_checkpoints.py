"""Checkpoints as people have them: read, or refused in one line before anything starts."""

import json
import math
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from dilaserve.stack.checks import model as model_finding
from dilaserve.stack.options import check_model
from services.worker.model.families import parse_config
from services.worker.model.weights import load
from shared.errors import BadInput
from shared.messages.requests import ChatMessage
from shared.text import TextModel
from tests.support.tiny_model import SPECIAL_TOKENS, write_tiny_sdar, write_tiny_weights

Change = Callable[[Path], None]


@pytest.fixture
def checkpoint(tiny_checkpoint_dir: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_checkpoint_dir, tmp_path / "model"))


@pytest.fixture
def sdar(tmp_path: Path) -> Path:
    return write_tiny_weights(write_tiny_sdar(tmp_path / "sdar"))


def rewrite(path: Path, **values: Any) -> None:
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(known | values))


def change_weights(directory: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors")


@pytest.mark.parametrize(
    ("config", "generation", "ends"),
    [
        (5, None, {5}),
        ([5, 9], None, {5, 9}),
        (5, 9, {5, 9}),
        (5, [9, 7], {5, 7, 9}),
        (None, [9, 7], {7, 9}),
        ([], 7, {7}),
        (None, None, set()),
    ],
)
def test_each_end_of_text_that_a_file_names_counts(
    config: Any, generation: Any, ends: set[int], checkpoint: Path
) -> None:
    rewrite(checkpoint / "config.json", eos_token_id=config)
    rewrite(checkpoint / "generation_config.json", eos_token_id=generation)
    text = TextModel(checkpoint, "m")
    [tokenizer_end] = text.encode_prompt("<|endoftext|>").tolist()
    [end_of_turn] = text.encode_prompt("<|eot_id|>").tolist()
    assert text.end_ids == ends | {tokenizer_end, end_of_turn}
    assert text.card.eos_token_id in (ends or {tokenizer_end})
    assert check_model(str(checkpoint)) == checkpoint


@pytest.mark.parametrize("value", ["</s>", [1.5], {"id": 1}, -1, True])
def test_an_end_of_text_that_is_no_token_id_is_refused(value: Any, checkpoint: Path) -> None:
    rewrite(checkpoint / "generation_config.json", eos_token_id=value)
    with pytest.raises(BadInput, match=r"eos_token_id of generation_config\.json must be a token id, a list"):
        check_model(str(checkpoint))


def pointer(path: Path) -> None:
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")


def dangle(path: Path) -> None:
    path.unlink()
    path.symlink_to("../../blobs/0")


def without_index(directory: Path) -> None:
    (directory / "model.safetensors").rename(directory / "model-00001-of-00002.safetensors")


def with_slow_tokenizer(directory: Path, name: str) -> None:
    path = directory / "tokenizer.json"
    (directory / "vocab.json").write_text(json.dumps(json.loads(path.read_text())["model"]["vocab"]))
    (directory / "merges.txt").write_text("#version: 0.2\n")
    path.unlink()
    rewrite(directory / "tokenizer_config.json", tokenizer_class=name)


def add_token(directory: Path) -> None:
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.add_tokens(["<more>"])
    tokenizer.save(str(directory / "tokenizer.json"))


def add_special_token(directory: Path, template: str) -> None:
    rewrite(directory / "tokenizer_config.json", chat_template=template, extra_special_tokens=["<more>"])


def add_distant_token(directory: Path) -> None:
    path = directory / "tokenizer.json"
    known = json.loads(path.read_text())
    known["model"]["vocab"]["more"] = 10**9
    path.write_text(json.dumps(known))


def quantize(tensors: dict[str, torch.Tensor]) -> None:
    name = "model.transformer.blocks.0.attn_out"
    tensors[f"{name}.qweight"] = tensors.pop(f"{name}.weight").to(torch.int32)
    tensors[f"{name}.scales"] = torch.ones(4, 4)


def repeat_parameter(directory: Path) -> None:
    tensors = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").rename(directory / "one.safetensors")
    name = "model.transformer.ln_f.weight"
    save_file({name: tensors[name]}, directory / "two.safetensors")
    index = {"weight_map": dict.fromkeys(tensors, "one.safetensors") | {name: "two.safetensors"}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def template(directory: Path, text: Any) -> None:
    rewrite(directory / "tokenizer_config.json", chat_template=text)


PARTS = "{% for message in messages %}{% for part in message.content %}{{ part.text }}{% endfor %}.{% endfor %}"


def cast(directory: Path, dtype: torch.dtype) -> None:
    change_weights(directory, lambda each: each.update({name: tensor.to(dtype) for name, tensor in each.items()}))


def move(directory: Path, inner: str) -> None:
    (directory / inner).mkdir(parents=True)
    for path in filter(Path.is_file, [*directory.iterdir()]):
        path.rename(directory / inner / path.name)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda d: pointer(d / "model.safetensors"), "model.safetensors is a Git LFS pointer, not the file: fetch"),
        (lambda d: pointer(d / "tokenizer.json"), "tokenizer.json is a Git LFS pointer"),
        (lambda d: dangle(d / "tokenizer.json"), "tokenizer.json is a link to a file that is absent"),
        (lambda d: dangle(d / "model.safetensors"), "model.safetensors is a link to a file that is absent"),
        (lambda d: (d / "tokenizer.json").unlink(), "no tokenizer in .*: it needs tokenizer.json, or vocab.json and"),
        (lambda d: with_slow_tokenizer(d, "GPT2Tokenizer"), "is a GPT2Tokenizer's; accepted: Qwen2's, Dream's, or"),
        (lambda d: truncate(d / "tokenizer.json"), "cannot read .*tokenizer.json"),
        (lambda d: (d / "tokenizer.json").write_text("{}"), "no usable tokenizer in .*added_tokens"),
        (lambda d: (d / "tokenizer_config.json").write_text("["), "cannot read .*tokenizer_config.json"),
        (lambda d: (d / "special_tokens_map.json").write_text("\ufeff{}"), "no usable tokenizer in .*BOM"),
        (lambda d: (d / "chat_template.jinja").write_bytes(b"\xff"), "no usable tokenizer in .*'utf-8' codec"),
        (lambda d: template(d, "{% for m in messages %}"), "the model's chat template refuses .* end of template"),
        (lambda d: template(d, [{"name": "rag", "template": "{{ 1 }}"}]), "template refuses .*no default specified"),
        (lambda d: template(d, PARTS), "template leaves out contents that are texts and not lists of parts"),
        (lambda d: template(d, "hello <|mdm_mask|>"), "chat_template must not contain the mask token"),
        (add_token, "tokenizer has tokens to 260, the model 0..259: resize the embedding"),
        (lambda d: add_special_token(d, template="hello <more>"), "chat_template has token ids outside 0..259"),
        (without_index, "lacks model.safetensors.index.json, which names the parameters of model-00001-of-00002"),
        (lambda d: (d / "model.safetensors").unlink(), "has no model.safetensors; only safetensors are loaded"),
        (lambda d: (d / "model.safetensors").rename(d / "pytorch_model.bin"), "only .* loaded, not pickles or GGUF"),
        (lambda d: cast(d, torch.int8), "norm.weight is I8; quantized weights are not supported"),
        (lambda d: cast(d, torch.float8_e4m3fn), "norm.weight is F8_E4M3; quantized weights are not supported"),
        (lambda d: truncate(d / "model.safetensors"), "cannot read the weights in"),
        (lambda d: rewrite(d / "config.json", n_layers=3), "lacks 9 parameters"),
        (lambda d: rewrite(d / "config.json", n_layers=1), "which is not a parameter"),
        (lambda d: rewrite(d / "config.json", embedding_size=512), "its config.json requires"),
        (lambda d: rewrite(d / "config.json", n_layers=10**9), "n_layers must be .* in 1..512, got 1000000000"),
        (lambda d: rewrite(d / "config.json", d_model=10**9), "d_model must be a whole number in 1..16777216, got 10"),
        (lambda d: rewrite(d / "config.json", n_layers=2.5), "n_layers must be a whole number in 1..512, got 2.5"),
        (lambda d: rewrite(d / "config.json", max_sequence_length=math.inf), "max_sequence_length must be .*, got inf"),
        (lambda d: rewrite(d / "config.json", mask_token_id=True), "mask_token_id must be .* in 0..16777216, got True"),
        (lambda d: rewrite(d / "config.json", mask_token_id=None), "config.json lacks the key 'mask_token_id'"),
        (lambda d: rewrite(d / "config.json", eos_token_id=[300, 10**19]), "300, 10{19} is outside the 260 embedding"),
        (lambda d: rewrite(d / "config.json", rms_norm_eps=math.nan), "rms_norm_eps must be a finite number above 0"),
        (lambda d: rewrite(d / "config.json", rope_parameters=1e4), "model/config.json: 'float' object is not"),
        (lambda d: (d / "config.json").write_text("[" * 10**5), "cannot read .*: (max.* recursion|Stack over)"),
        (add_distant_token, "tokenizer has tokens to 1000000000, the model 0..259: resize the embedding"),
        (lambda d: change_weights(d, quantize), "blocks.0.attn_out.scales, which is not .*; quantized weights are not"),
        (repeat_parameter, "two.safetensors holds model.transformer.ln_f.weight, twice"),
        (lambda d: rewrite(d / "config.json", quantization_config={"bits": 4}), "quantized checkpoints are not"),
        (lambda d: rewrite(d / "config.json", quantization={"bits": 4}), "quantization: quantized checkpoints are not"),
        (lambda d: (d / "config.json").unlink(), "no such file; accepted: .* checkpoint, with its config.json"),
        (lambda d: (d / "config.json").rename(d / "llada.gguf"), "accepted: .* a safetensors checkpoint, not GGUF"),
        (lambda d: move(d, "checkpoint-500"), "accepted: .*, such as .*/checkpoint-500"),
        (lambda d: move(d, "snapshots/08b83a6f"), "accepted: .*, such as .*/snapshots/08b83a6f"),
        (lambda d: rewrite(d / "adapter_config.json", r=8), "adapter's: give a checkpoint into which it was merged"),
    ],
)  # fmt: skip
def test_unusable_checkpoints_are_refused_in_one_line(change: Change, complaint: str, checkpoint: Path) -> None:
    change(checkpoint)
    with pytest.raises(BadInput, match=complaint) as caught:
        check_model(str(checkpoint))
    assert "\n" not in caught.value.message
    finding = model_finding(str(checkpoint))
    assert not finding.ok
    assert finding.detail == caught.value.message


@pytest.mark.parametrize("part", ["", "config.json", "tokenizer.json", "model.safetensors"])
def test_a_checkpoint_that_may_not_be_read_is_refused(part: str, checkpoint: Path) -> None:
    (checkpoint / part).chmod(0)
    user = os.geteuid()
    os.seteuid(user or 65534)  # no permission stops root, whose temporary directories no other user may read
    try:
        finding = model_finding(str(checkpoint))
    finally:
        os.seteuid(user)
        (checkpoint / part).chmod(0o700)
    assert not finding.ok
    assert re.search(f"cannot read .*{part if user else ''}: Permission denied", finding.detail)


@pytest.mark.parametrize("name", [None, "Qwen2Tokenizer", "Qwen2TokenizerFast", "DreamTokenizer"])
def test_the_files_of_a_slow_tokenizer_are_read(name: Any, checkpoint: Path) -> None:
    with_slow_tokenizer(checkpoint, name)
    added = {str(256 + at): {"content": content, "special": True} for at, content in enumerate(SPECIAL_TOKENS)}
    rewrite(checkpoint / "tokenizer_config.json", added_tokens_decoder=added)
    assert check_model(str(checkpoint)) == checkpoint


def test_the_chat_template_of_a_processor_is_read(checkpoint: Path) -> None:
    template = json.loads((checkpoint / "tokenizer_config.json").read_text())["chat_template"]
    expected = TextModel(checkpoint, "m").encode_chat([ChatMessage(role="user", content="hi")])
    rewrite(checkpoint / "tokenizer_config.json", chat_template=None)
    (checkpoint / "chat_template.json").write_text(json.dumps({"chat_template": template}))
    found = TextModel(checkpoint, "m").encode_chat([ChatMessage(role="user", content="hi")])
    assert found.tolist() == expected.tolist()


def test_a_model_without_a_chat_template_serves_completions(checkpoint: Path) -> None:
    rewrite(checkpoint / "tokenizer_config.json", chat_template=None)
    text = TextModel(checkpoint, "m")
    assert len(text.encode_prompt("hi")) == 2
    with pytest.raises(BadInput, match="the model has no chat template; use /v1/completions"):
        text.encode_chat([ChatMessage(role="user", content="hi")])
    assert "without a chat template" in model_finding(str(checkpoint)).detail


def test_stored_frequencies_of_the_rotation_are_ignored(sdar: Path) -> None:
    change_weights(sdar, lambda each: each.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}))
    assert check_model(str(sdar)) == sdar
    assert load(sdar, torch.float32, "cpu").config.family == "sdar"


def test_a_single_file_is_read_beside_an_index_of_other_shards(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "absent.safetensors"}}))
    assert check_model(str(checkpoint)) == checkpoint


def test_a_tied_head_may_be_stored_if_it_equals_the_embedding(sdar: Path) -> None:
    rewrite(sdar / "config.json", tie_word_embeddings=True)
    change_weights(sdar, lambda each: each.update({"lm_head.weight": each["model.embed_tokens.weight"].clone()}))
    assert load(sdar, torch.float32, "cpu").head is None
    change_weights(sdar, lambda each: each["lm_head.weight"].add_(1))
    with pytest.raises(BadInput, match=r"the head differs from the embedding, to which its config\.json ties it"):
        check_model(str(sdar))


def test_a_mask_that_only_the_tokenizer_names_is_refused_with_the_key_to_add(sdar: Path) -> None:
    rewrite(sdar / "config.json", mask_token_id=None, vocab_size=151_936)
    with pytest.raises(BadInput, match=r'the mask is 151669, but the tokenizer names 258: add "mask_token_id"'):
        check_model(str(sdar))


def test_a_list_of_ends_is_read_by_every_family(sdar: Path, checkpoint: Path) -> None:
    for directory in (sdar, checkpoint):
        rewrite(directory / "config.json", eos_token_id=[7, 9])
        assert load(directory, torch.float32, "cpu").config.eos_token_id == 7
    assert parse_config(json.loads((sdar / "config.json").read_text()) | {"eos_token_id": 3}).eos_token_id == 3
