"""Packed forwards, fresh and cached, compute the reference's logits."""

from collections.abc import Mapping
from functools import cache

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from services.worker.cache.kv_store import KvStore
from services.worker.engine.batch import Part, pack
from services.worker.engine.sequence_state import NO_REGION, SequenceState
from services.worker.model.decoder import PackedDecoder
from services.worker.model.weights import load
from tests.support.golden import RELATIVES, SETS, directory
from tests.support.packed_forward import forward_packed

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
