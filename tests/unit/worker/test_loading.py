"""Checkpoints under the published names, read, written or refused; devices, threads and the size of the cache."""

import copy
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3Config

from services.worker.cache.kv_store import CPU_SHARE, tokens_that_fit
from services.worker.model.decoder import PackedDecoder, Shard
from services.worker.model.families import FAMILIES, parse_config
from services.worker.model.model_loading import (
    CacheSize,
    ModelChoice,
    check_model,
    choose_dtype,
    largest_batch,
    open_runner,
)
from services.worker.model.model_runner import Runner, truncated_rows
from services.worker.model.weights import empty_decoder, load, save
from shared import cpu
from shared.errors import BadInput
from tests.support.golden import BLOCK_SETS, COPY, GOLDEN, SETS
from tests.support.random_model import LLADA, random_decoder

MODEL = str(COPY / "llada/seed1")
REAL = json.loads((COPY / "real_configs.json").read_text())


@pytest.mark.parametrize(
    ("tp", "gpus", "wanted"),
    [
        (1, (), [0]),
        (2, (), [0, 1]),
        (1, (3,), [3]),
        (2, (0, 2), [0, 2]),
        (1, (7,), [0]),  # in a container, which sees only its own GPUs
        (2, (2, 7), [0, 1]),
    ],
)
def test_ranks_use_the_gpus_of_their_instance(
    tp: int, gpus: tuple[int, ...], wanted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    devices = check_model(ModelChoice(MODEL, device="auto", tp=tp, gpus=gpus))[1]
    assert devices == [torch.device("cuda", gpu) for gpu in wanted]


def test_a_cache_that_exceeds_the_memory_is_reported_in_one_line() -> None:
    room = CacheSize(1, tokens=10**12)
    with pytest.raises(BadInput, match="no memory for a cache"), open_runner(ModelChoice(MODEL, threads=1), room):
        pass


def test_the_page_cache_counts_as_free_memory() -> None:
    decoder = random_decoder()
    meminfo = Path("/proc/meminfo").read_text(encoding="ascii").split()
    available = 1024 * int(meminfo[meminfo.index("MemAvailable:") + 1])
    fit = tokens_that_fit(decoder.kv_shape) * decoder.kv_shape.bytes_per_token
    assert fit == pytest.approx(CPU_SHARE * available, rel=0.5)  # other processes allocate and free memory too


def test_the_ranks_of_a_cpu_share_its_memory() -> None:
    whole, shard = random_decoder(), PackedDecoder(parse_config(LLADA), Shard(0, 2))
    fit = [
        tokens_that_fit(decoder.kv_shape, ranks=decoder.shard.size) * decoder.kv_shape.bytes_per_token
        for decoder in (whole, shard)
    ]
    assert fit[1] == pytest.approx(fit[0] / 2, rel=0.5)


def test_the_cache_leaves_room_for_the_largest_forward() -> None:
    decoder = random_decoder()
    kept = 1 << 30
    without, beside = tokens_that_fit(decoder.kv_shape), tokens_that_fit(decoder.kv_shape, kept)
    assert without - beside == pytest.approx(kept / decoder.kv_shape.bytes_per_token, rel=0.5)
    assert tokens_that_fit(decoder.kv_shape, 1 << 60) == 0


@pytest.mark.parametrize(("tokens", "requests", "fed"), [(8192, 64, 8192), (100, 64, 100), (8192, 4, 512), (1, 1, 2)])
def test_the_largest_batch_is_at_the_limits_and_runs(tokens: int, requests: int, fed: int) -> None:
    decoder = random_decoder()  # of at most 128 tokens a request
    batch = largest_batch(decoder.config, tokens, requests)
    assert (len(batch.tokens), len(batch.lengths) <= requests) == (fed, True)
    assert len(truncated_rows(batch)) == len(batch.rows) == len(Runner(decoder).run(batch).tokens)


@pytest.mark.parametrize("name", BLOCK_SETS)
def test_the_largest_batch_of_a_block_causal_model_is_whole_blocks(name: str) -> None:
    decoder = load(GOLDEN / name, torch.float32, "cpu")
    batch = largest_batch(decoder.config, 200, 3)
    assert {int(length) for length in batch.lengths} == {decoder.config.block_length}
    assert 3 * (200 // 3 - decoder.config.block_length) < len(batch.tokens) <= 200
    assert len(Runner(decoder).run(batch).tokens) == 3 * decoder.config.block_length


def test_a_rank_gets_its_share_of_the_usable_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(5)))
    threads = torch.get_num_threads()
    try:
        with open_runner(ModelChoice(MODEL), CacheSize(requests=0)):
            assert torch.get_num_threads() == 5
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("device", "instructions", "wanted"),
    [
        ("cuda", "avx2", torch.bfloat16),
        ("cpu", "avx2", torch.float32),
        ("cpu", "avx2 avx512f avx512_bf16", torch.bfloat16),
        ("cpu", "avx2 avx512f avx512_bf16 amx_bf16", torch.float32),
    ],
)
def test_the_number_format_follows_the_device_and_its_instructions(
    device: str, instructions: str, wanted: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "_instructions", lambda: set(instructions.split()))
    assert choose_dtype("auto", torch.device(device)) is wanted


ONE = "llada/seed1"


def copy_of(name: str, directory: Path) -> Path:
    for file in ("config.json", "model.safetensors"):
        shutil.copy(COPY / name / file, directory / file)
    return directory


@pytest.mark.parametrize("name", SETS)
def test_saving_restores_the_published_parameters(name: str, tmp_path: Path) -> None:
    save(load(GOLDEN / name, torch.float32, "cpu"), tmp_path, torch.float32)
    saved, published = (load_file(tmp_path / "model.safetensors"), load_file(GOLDEN / name / "model.safetensors"))
    assert saved.keys() == published.keys()
    assert all(torch.equal(saved[key], published[key]) for key in published)


def test_sharded_files_load_as_a_single_file_does(tmp_path: Path) -> None:
    source = COPY / ONE
    tensors = load_file(copy_of(ONE, tmp_path) / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    names = sorted(tensors)
    shards = {"one.safetensors": names[::2], "two.safetensors": names[1::2]}
    for shard, keys in shards.items():
        save_file({key: tensors[key] for key in keys}, tmp_path / shard)
    weight_map = {key: shard for shard, keys in shards.items() for key in keys}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    sharded, whole = load(tmp_path, torch.float32, "cpu"), load(source, torch.float32, "cpu")
    assert all(torch.equal(a, b) for a, b in zip(sharded.parameters(), whole.parameters(), strict=True))


def test_parameters_are_checked_before_they_are_loaded(tmp_path: Path) -> None:
    path = copy_of(ONE, tmp_path) / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.transformer.ln_f.weight"]
    save_file(tensors, path)
    with pytest.raises(BadInput, match=r"lacks 1 parameters.*ln_f"):
        load(tmp_path, torch.float32, "cpu")


def test_the_published_configurations_are_read() -> None:
    llada, dream = (parse_config(REAL[name]["config"]) for name in ("llada-8b-instruct", "dream-7b"))
    assert (llada.family, llada.head_dim, llada.num_kv_heads) == ("llada", 128, 32)
    assert (dream.family, dream.head_dim, dream.num_kv_heads) == ("dream", 128, 4)
    assert (llada.shifted_logits, dream.shifted_logits) == (False, True)
    assert (llada.rope_base, llada.norm_eps, llada.mask_token_id, llada.max_length) == (5e5, 1e-5, 126336, 4096)
    assert (dream.rope_base, dream.norm_eps, dream.mask_token_id, dream.max_length) == (1e6, 1e-6, 151666, 2048)


@pytest.mark.parametrize("name", [name for name, entry in REAL.items() if entry.get("parameters")])
def test_a_published_configuration_has_the_published_number_of_parameters(name: str) -> None:
    entry = REAL[name]
    ids = {"eos_token_id": entry.get("other_special_ids", {}).get("eos", 1)}
    decoder = empty_decoder(parse_config(ids | entry["config"]), torch.bfloat16, torch.device("meta"))
    assert sum(parameter.numel() for parameter in decoder.parameters()) == entry["parameters"]


@pytest.mark.parametrize("place", ["rope_parameters", "rope_scaling"])
@pytest.mark.parametrize(
    "name", ["llada-8b-instruct", "dream-7b", "sdar-4b", "llada2.0-mini", "sdar-30b-a3b", "llada-moe-7b-a1b"]
)
def test_the_rotation_is_read_where_transformers_5_writes_it(name: str, place: str) -> None:
    raw = REAL[name]["config"]
    moved = {key: raw[key] for key in ("rope_theta", "partial_rotary_factor") if key in raw}
    new = {key: value for key, value in raw.items() if key not in moved} | {place: {"rope_type": "default"} | moved}
    assert parse_config(new) == parse_config(raw)
    for scaled in ({"rope_type": "yarn"}, {"type": "linear"}, {}):
        with pytest.raises(ValueError, match=r"rope_type is '(yarn|linear|default)', factor 4.0: only 'default'"):
            parse_config(raw | {place: scaled | moved | {"factor": 4.0}})


@pytest.mark.parametrize(
    "own",
    [
        {"rope_parameters": {"rope_type": "default", "rope_theta": 7.0}},
        {"rope_parameters": {"rope_theta": 7.0}, "rope_scaling": {"rope_theta": 9.0}},
        {"rope_parameters": {"rope_theta": 7.0}, "rope_scaling": {"type": "default"}},
        {"rope_parameters": {"rope_theta": 7.0}, "rope_scaling": None},
        {"rope_parameters": {"full_attention": {"rope_theta": 7.0}}},
        {"rope_parameters": {"full_attention": {}, "sliding_attention": {"rope_theta": 7.0}}},
        {"rope_scaling": {"full_attention": {"rope_theta": 7.0}}, "rope_parameters": {"rope_theta": 9.0}},
    ],
)
def test_the_rotation_is_the_one_that_transformers_reads(own: dict[str, Any]) -> None:
    raw = REAL["sdar-4b"]["config"] | copy.deepcopy(own)
    found = Qwen3Config(**copy.deepcopy(raw)).rope_parameters
    assert parse_config(raw).rope_base == found.get("full_attention", found)["rope_theta"]


NESTED: list[dict[str, Any]] = [{"rope_type": "yarn", "factor": 4.0}, {"rope_type": "proportional"}]


@pytest.mark.parametrize(
    ("name", "change", "complaint"),
    [
        *(("sdar-4b", {"rope_parameters": {"full_attention": own}}, "rope_type is '(yarn|prop)") for own in NESTED),
        ("sdar-4b", {"rope_parameters": {"full_attention": None}}, "rope_parameters has no keys for full_attention"),
        ("sdar-4b", {"rope_scaling": {"sliding_attention": {}}}, "rope_scaling has no keys for full_attention"),
        ("sdar-4b", {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5, only 1 is implemented"),
        ("sdar-4b", {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types has sliding_attention,"),
        ("sdar-4b", {"block_size": 10**6}, "block_size must be a whole number in 1..32768, got 1000000"),
        ("llada-8b-instruct", {"architectures": None}, "architecture: none; supported"),
        ("llada-8b-instruct", {"block_size": 32}, "block_size is 32, only models without it are implemented"),
        ("llada-8b-instruct", {"layer_norm_type": "default"}, "only 'rms' is implemented"),
        ("llada-8b-instruct", {"n_layers": -2}, "n_layers must be a whole number in 1..512, got -2"),
        ("llada-8b-instruct", {"n_heads": 0}, "n_heads must be a whole number in 1"),
        ("llada-8b-instruct", {"mask_token_id": 126464}, "outside the 126464 embedding rows"),
        ("dream-7b", {"head_dim": 1 << 22}, "28 heads of 4194304; accepted: 16777216 together"),
        ("llada2.0-mini", {"num_experts": 10**9}, "num_experts must be a whole number in 1..1024, got 1000000000"),
        ("llada2.0-mini", {"num_shared_experts": 1 << 24}, "the shared experts' width is 8589934592; accepted: up to"),
        ("sdar-30b-a3b", {"mlp_only_layers": [0]}, r"mlp_only_layers is \[0\], only \[\] is implemented"),
        ("sdar-30b-a3b", {"decoder_sparse_step": 2}, "decoder_sparse_step is 2, only 1 is implemented"),
        ("sdar-30b-a3b", {"num_experts_per_tok": 129}, "129 experts per token do not fit into 1 groups"),
        ("llada-moe-7b-a1b", {"moe_layer_freq": [1, 0] * 8}, "only 0 for the first layers and 1 for all others is"),
        ("llada-moe-7b-a1b", {"moe_layer_freq": 1}, "only 0 for the first layers and 1 for all others is"),
        ("llada-moe-7b-a1b", {"shared_expert_intermediate_size": 1024}, "only models without it are implemented"),
        ("llada-moe-7b-a1b", {"moe_router_score_function": "sigmoid"}, "only 'softmax' is implemented"),
        ("diffusiongemma-26b-a4b", {"num_hidden_layers": 10**9}, "num_hidden_layers must be a whole number in 1..512"),
        ("diffusiongemma-26b-a4b", {"canvas_length": 10**6}, "block_size must be a whole number in 1..65536"),
        ("diffusiongemma-26b-a4b", {"sliding_window": 0}, "sliding_window must be a whole number in 1"),
        ("diffusiongemma-26b-a4b", {"num_global_key_value_heads": 3}, "16 heads cannot share 3 key/value heads evenly"),
        ("diffusiongemma-26b-a4b", {"rope_parameters": {"rope_theta": 7.0, "partial_rotary_factor": 0.5}}, "only 1 is"),
        ("diffusiongemma-26b-a4b", {"generation": {"max_denoising_steps": 10**9}}, "max_denoising_steps must be"),
        ("diffusiongemma-26b-a4b", {"generation": {"t_min": math.inf}}, "t_min must be a finite number above 0"),
    ],
)  # fmt: skip
def test_unusable_values_are_refused_before_anything_of_their_size_is_made(
    name: str, change: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_config(REAL[name]["config"] | change)


def test_a_null_beside_the_text_configuration_leaves_its_value() -> None:
    raw = REAL["diffusiongemma-26b-a4b"]["config"]
    assert parse_config(raw | {"rope_parameters": None, "num_experts": None}) == parse_config(raw)


@pytest.mark.parametrize("family", ["llada", "dream", "llada2"])  # the reference model of SDAR is tied itself
def test_a_tied_head_is_that_of_the_embedding(family: str, tmp_path: Path) -> None:
    raw = json.loads((COPY / family / "seed1" / "config.json").read_text())
    names = FAMILIES[family].outer_names
    weights = load_file(COPY / family / "seed1" / "model.safetensors")
    weights[f"{names['head']}.weight"] = weights[f"{names['embed']}.weight"].clone()
    decoders = []
    for is_tied in (False, True):
        directory = tmp_path / str(is_tied)
        directory.mkdir()
        tied = {"weight_tying": is_tied, "tie_word_embeddings": is_tied}
        (directory / "config.json").write_text(json.dumps(raw | tied))
        kept = {name: tensor for name, tensor in weights.items() if not (is_tied and name.startswith(names["head"]))}
        save_file(kept, directory / "model.safetensors")
        decoders.append(load(directory, torch.float32, "cpu"))
    hidden = torch.randn(3, decoders[0].config.width, generator=torch.Generator().manual_seed(0))
    untied, tied_logits = (decoder.logits(hidden) for decoder in decoders)
    assert decoders[1].head is None
    assert torch.equal(untied, tied_logits)


def test_loading_does_not_import_the_compiler_of_torch() -> None:
    program = (
        "import sys, torch; from pathlib import Path; from services.worker.model.weights import load;"
        f"load(Path({str(COPY / ONE)!r}), torch.float32, 'cpu');"
        "print(*{'sympy', 'torch._dynamo'} & sys.modules.keys())"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []
