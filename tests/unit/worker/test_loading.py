"""Loading a model: its devices, its threads and the size of its cache."""

import os
from pathlib import Path

import pytest
import torch

from services.worker.cache.kv_store import CPU_SHARE, tokens_that_fit
from services.worker.model.decoder import PackedDecoder, Shard
from services.worker.model.families import parse_config
from services.worker.model.largest_batch import largest_batch
from services.worker.model.model_loading import CacheSize, ModelChoice, check_model, choose_dtype, open_runner
from services.worker.model.model_runner import Runner, truncated_rows
from services.worker.model.weights import load
from services.worker.settings import WorkerSettings
from shared.errors import BadInput
from shared.settings import read_settings
from tests.support.golden import BLOCK_SETS, COPY, GOLDEN
from tests.support.random_model import LLADA, random_decoder

MODEL = str(COPY / "llada/seed1")


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


def test_an_invalid_gpu_is_reported_in_one_line() -> None:
    with pytest.raises(BadInput, match="DILASERVE_GPUS='0,-1': Expected `int` >= 0"):
        read_settings(WorkerSettings, {"DILASERVE_GPUS": "0,-1"})


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


@pytest.mark.parametrize(("device", "wanted"), [("cpu", torch.float32), ("cuda", torch.bfloat16)])
def test_the_number_format_follows_the_device(device: str, wanted: torch.dtype) -> None:
    assert choose_dtype("auto", torch.device(device)) is wanted
