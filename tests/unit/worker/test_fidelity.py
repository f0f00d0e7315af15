"""Logits and decoding traces are those of the published reference implementations, one by one and batched."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from services.worker.cache.kv_store import KvStore
from services.worker.engine.batch import Part, pack
from services.worker.engine.sequence_state import NO_REGION, SequenceState
from services.worker.model.decoder import PackedDecoder
from services.worker.model.model_runner import Runner
from services.worker.model.weights import load
from tests.support.engines import MODES, assert_traces, decode_cases
from tests.support.golden import RELATIVES, SETS, directory, threshold_cases
from tests.support.packed_forward import forward_packed


@cache
def runner_of(model: Path) -> Runner:
    return Runner(load(model, torch.float32, "cpu"), cache_tokens=4096)


@pytest.mark.parametrize("name", [*SETS, *RELATIVES])
@pytest.mark.parametrize("mode", MODES)
def test_all_cases_in_one_batch_and_some_alone_match_the_reference_traces(name: str, mode: str) -> None:
    cases = threshold_cases((name,), (mode,))
    if cases:  # of each family, the authors' code has some of the modes
        assert_traces(decode_cases(cases, runner_of(directory(name))), cases)
    for case in cases[::4]:
        assert_traces(decode_cases([case], runner_of(directory(name))), [case])


@pytest.mark.parametrize("name", [*SETS, *RELATIVES])
def test_each_set_has_traces_of_several_thresholds(name: str) -> None:
    assert len({case.threshold for case in threshold_cases((name,), tuple(MODES))}) >= 3


LOGITS_ATOL = 5e-4  # fp32, the bound published with the vectors
CACHE_TOKENS = 256


@cache
def decoder_of(name: str) -> PackedDecoder:
    return load(directory(name), torch.float32, "cpu")


def sequence(ids: Tensor) -> SequenceState:
    """A request with an empty prompt and one block, with its own cache entries."""
    canvas = ids.numpy().astype(np.int32)
    known = np.full(len(ids), np.nan, dtype=np.float32)
    return SequenceState(0, 0, len(ids), canvas, known, kv_start=0)


def forward(decoder: PackedDecoder, parts: list[Part], store: KvStore | None = None) -> list[Tensor]:
    """The logits of what each part feeds: [stop - start, V]."""
    if store is None:
        for part in parts:
            part.sequence.kv_start = NO_REGION
    batch = pack(parts, decoder.config)
    hidden = forward_packed(decoder, batch, store)
    return list(torch.split(decoder.logits(hidden), batch.lengths.tolist()))


def assert_close(own: Tensor, reference: Tensor) -> None:
    torch.testing.assert_close(own, reference, atol=LOGITS_ATOL, rtol=0)


def rows(files: Mapping[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Every sequence of full forwards without its padding: ids [L] and logits [L, V]."""
    found = []
    for key in (key for key in files if key.endswith("/input_ids")):
        ids, logits = files[key], files[key.replace("input_ids", "logits")]
        real = files.get(key.replace("input_ids", "attention_mask"), torch.ones_like(ids)).bool()
        found += [(i[mask], wanted[mask]) for i, wanted, mask in zip(ids, logits, real, strict=True)]
    return found


@pytest.mark.parametrize(
    ("name", "file"),
    [(name, file) for name in SETS for file in ("forward", "padded")] + [(n, "forward") for n in RELATIVES],
)
def test_all_sequences_in_one_packed_forward_match_the_reference(name: str, file: str) -> None:
    pairs = rows(load_file(directory(name) / f"{file}.safetensors"))
    assert len(pairs) > 0
    pairs.sort(key=lambda pair: len(pair[0]))
    parts = [Part(sequence(ids), 0, 0, 0, len(ids)) for ids, _ in pairs]
    for own, (_, wanted) in zip(forward(decoder_of(name), parts), pairs, strict=True):
        assert_close(own, wanted)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("mode", ["prefix", "dual"])
def test_a_cached_forward_attends_to_the_keys_of_the_recompute_step(name: str, mode: str) -> None:
    files, decoder = load_file(directory(name) / "forward.safetensors"), decoder_of(name)
    cases = sorted({key.rpartition("/")[0] for key in files if key.startswith("cached/")})
    assert cases
    for case in cases:
        store, resident = KvStore(decoder.kv_shape, CACHE_TOKENS), sequence(files[f"{case}/cache_input_ids"][0])
        start, stop = files[f"{case}/block"].tolist()
        length = len(resident.canvas)
        forward(decoder, [Part(resident, 0, 0, 0, length)], store)
        resident.canvas[:] = files[f"{case}/step_input_ids"][0].numpy()
        end = length if mode == "prefix" else stop
        [own] = forward(decoder, [Part(resident, 1, 0, start, end)], store)
        assert_close(own, files[f"{case}/logits_{mode}"][0])
