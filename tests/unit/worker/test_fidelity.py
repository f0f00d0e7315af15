"""Logits, routes and traces are those of the published reference implementations: alone, batched, cached, and split."""

from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from services.worker.cache.kv_store import KvStore
from services.worker.engine.batch import Part, pack
from services.worker.engine.cache_mode import CacheMode, check_mode
from services.worker.engine.offline_decoder import CaseRequest, DecodeOptions, EditRule, RequestTrace, decode_together
from services.worker.engine.sequence_state import NO_REGION, SequenceState
from services.worker.model.cpu_layers import pack_for_cpu
from services.worker.model.decoder import PackedDecoder, Shard
from services.worker.model.experts import ExpertMlp, Router, choose_experts
from services.worker.model.families import read_config
from services.worker.model.families.config import Experts
from services.worker.model.model_loading import CacheSize, ModelChoice, open_runner
from services.worker.model.model_runner import Runner
from services.worker.model.weights import load
from shared.errors import BadInput
from tests.support.engines import MODES, assert_trace, assert_traces, decode_cases
from tests.support.golden import (
    BLOCK_RELATIVES,
    BLOCK_SETS,
    COPY,
    GOLDEN,
    RELATIVES,
    SETS,
    GoldenCase,
    directory,
    threshold_cases,
)
from tests.support.packed_forward import forward_packed

LOGITS_ATOL = 5e-4  # fp32, the bound published with the vectors
CACHE_TOKENS = 256


def some(names: list[str]) -> list[Any]:
    """The vectors of the other seeds, which lie beside the project, show the same."""
    return [pytest.param(name, marks=[] if name.endswith("seed1") else pytest.mark.slow) for name in names]


@cache
def decoder_of(name: str) -> PackedDecoder:
    decoder = load(directory(name), torch.float32, "cpu")
    pack_for_cpu(decoder)
    return decoder


@cache
def runner_of(name: str) -> Runner:
    return Runner(decoder_of(name), cache_tokens=8192)


def forward(decoder: PackedDecoder, parts: list[Part], store: KvStore | None = None) -> list[Tensor]:
    """The logits of what each part feeds: [stop - start, V]."""
    batch = pack(parts, decoder.config)
    hidden = forward_packed(decoder, batch, store)
    return list(torch.split(decoder.logits(hidden), batch.lengths.tolist()))


def assert_close(own: Tensor, reference: Tensor) -> None:
    torch.testing.assert_close(own, reference, atol=LOGITS_ATOL, rtol=0)


@pytest.mark.parametrize("name", [*some(SETS), *RELATIVES])
@pytest.mark.parametrize("mode", MODES)
def test_all_cases_in_one_batch_and_some_alone_match_the_reference_traces(name: str, mode: str) -> None:
    cases = threshold_cases((name,), (mode,))
    if cases:  # of each family, the authors' code has some of the modes
        assert_traces(decode_cases(cases, runner_of(name)), cases)
    for case in cases[::4]:
        assert_traces(decode_cases([case], runner_of(name)), [case])


def sequence(ids: Tensor, block_length: int = 0, kv_start: int = NO_REGION) -> SequenceState:
    """A request with an empty prompt: one block, or the blocks of a block-causal model."""
    known = np.full(len(ids), np.nan, dtype=np.float32)
    canvas, is_aligned = ids.numpy().astype(np.int32), block_length > 0
    return SequenceState(0, 0, block_length or len(ids), canvas, known, kv_start=kv_start, is_aligned=is_aligned)


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
        store = KvStore(decoder.kv_shape, CACHE_TOKENS)
        resident = sequence(files[f"{case}/cache_input_ids"][0], kv_start=0)
        start, stop = files[f"{case}/block"].tolist()
        length = len(resident.canvas)
        forward(decoder, [Part(resident, 0, 0, 0, length)], store)
        resident.canvas[:] = files[f"{case}/step_input_ids"][0].numpy()
        end = length if mode == "prefix" else stop
        [own] = forward(decoder, [Part(resident, 1, 0, start, end)], store)
        assert_close(own, files[f"{case}/logits_{mode}"][0])


# --- block-causal families ---


def options_of(case: GoldenCase, mode: CacheMode) -> DecodeOptions:
    edits = None if case.edit_threshold is None else EditRule(case.edit_threshold, case.max_post_steps)
    return DecodeOptions(mode, case.threshold, case.block_length, len(case.output), edits=edits)


def decode(cases: list[GoldenCase], runner: Runner, mode: CacheMode) -> list[RequestTrace]:
    """Decode cases with the same options together."""
    [options] = {options_of(case, mode) for case in cases}
    requests = [CaseRequest(case.name, case.prompt) for case in cases]
    return decode_together(requests, runner, options)


@pytest.mark.parametrize("name", [*some(BLOCK_SETS), *BLOCK_RELATIVES])
@pytest.mark.parametrize("mode", [CacheMode.BLOCK, CacheMode.NONE])
def test_some_cases_alone_match_the_reference_trace(name: str, mode: CacheMode) -> None:
    """All of them run in batches below."""
    cases = threshold_cases((name,), ("block", "block-edit"))[::4]
    edits = sum(len(step.get("edit_pos", [])) for case in cases for step in case.steps)
    assert (edits > 30) == name.startswith("llada2")
    for case in cases:
        [trace] = decode([case], runner_of(name), mode)
        assert_trace(trace, case)
        assert {step.kind for step in trace.steps} == {"denoise"}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*some(BLOCK_SETS), *BLOCK_RELATIVES])
def test_cases_of_equal_options_in_one_batch_match_the_reference(name: str) -> None:
    groups: dict[DecodeOptions, list[GoldenCase]] = {}
    for case in threshold_cases((name,), ("block", "block-edit")):
        groups.setdefault(options_of(case, CacheMode.BLOCK), []).append(case)
    assert any(len(cases) > 1 for cases in groups.values())
    for cases in groups.values():
        for trace, case in zip(decode(cases, runner_of(name), CacheMode.BLOCK), cases, strict=True):
            assert_trace(trace, case)


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", sorted({"sdar/seed0", "llada2/seed1"} & set(BLOCK_SETS)))
def test_a_split_model_matches_the_reference_trace(name: str) -> None:
    cases = threshold_cases((name,), ("block", "block-edit"))[::5]
    with open_runner(ModelChoice(str(GOLDEN / name), "cpu", "float32", tp=2, threads=1), CacheSize(1, 512)) as runner:
        for case in cases:
            options = options_of(case, CacheMode.BLOCK)
            assert_trace(decode_together([CaseRequest("a", case.prompt)], runner, options)[0], case)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize("name", SETS)
def test_ranks_together_decode_every_case_like_the_reference(name: str, tp: int) -> None:
    choice = ModelChoice(str(GOLDEN / name), dtype="float32", tp=tp, threads=1)
    with open_runner(choice, CacheSize(64, 4096)) as ranks:
        for mode in MODES:
            if cases := threshold_cases((name,), (mode,)):
                assert_traces(decode_cases(cases, ranks), cases)


@pytest.mark.parametrize(("name", "degree"), [("llada2/seed1", 4), ("sdar/seed1", 4)])
def test_a_degree_that_does_not_fit_is_refused_in_one_line(name: str, degree: int) -> None:
    with pytest.raises(BadInput, match=f"degree {degree}") as caught:
        Shard(0, degree).check(decoder_of(name).config)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [*BLOCK_SETS, *BLOCK_RELATIVES])
def test_a_whole_forward_matches_the_reference(name: str) -> None:
    decoder, files = decoder_of(name), load_file(directory(name) / "forward.safetensors")
    cases = sorted(key.removesuffix("/input_ids") for key in files if key.startswith("block/") and "input_ids" in key)
    assert cases
    for case in cases:
        length = int(files[f"{case}/block_length"])
        for ids, wanted in zip(files[f"{case}/input_ids"], files[f"{case}/logits"], strict=True):
            whole = torch.nn.functional.pad(ids, (0, -len(ids) % length), value=decoder.config.mask_token_id)
            own = torch.cat(forward(decoder, [Part(sequence(whole, length), 0, 0, 0, len(whole))]))
            complete = len(ids) - len(ids) % length  # tokens of a short last block would see the padding
            assert_close(own[:complete], wanted[:complete])


@pytest.mark.parametrize("name", BLOCK_SETS)
def test_a_finished_block_is_cached_together_with_the_next_blocks_step(name: str) -> None:
    decoder, files = decoder_of(name), load_file(GOLDEN / name / "forward.safetensors")
    cases = sorted(key.removesuffix("/block") for key in files if key.startswith("inc/") and key.endswith("/block"))
    assert cases
    for case in cases:
        start, stop = files[f"{case}/block"].tolist()
        length = stop - start
        keys = ("finished_ids", "step_ids", "commit_ids", "next_ids", "logits_step", "logits_commit", "logits_next")
        for finished, step, commit, following, *wanted in zip(*(files[f"{case}/{key}"] for key in keys), strict=True):
            store = KvStore(decoder.kv_shape, stop + length)
            arriving = sequence(torch.cat((finished, step)), length, kv_start=0)
            own = torch.cat(forward(decoder, [Part(arriving, 0, 0, 0, stop)], store))
            assert_close(own[start:], wanted[0])
            going_on = sequence(torch.cat((finished, commit, following)), length, kv_start=0)
            own = torch.cat(forward(decoder, [Part(going_on, 1, 1, start, stop + length)], store))
            assert_close(own[:length], wanted[1])
            assert_close(own[length:], wanted[2])


@pytest.mark.parametrize("is_softmax", [False, True])
@pytest.mark.parametrize(("width", "experts"), [(64, 16), (256, 16), (256, 128)])
def test_a_token_has_the_same_scores_in_the_router_alone(width: int, experts: int, *, is_softmax: bool) -> None:
    torch.manual_seed(0)
    router = Router(width, Experts(1, experts, 2, 8, 8, 4, 2, 1.0, is_softmax=is_softmax))
    torch.nn.init.normal_(router.weight)
    x = torch.randn(40, width)
    alone = torch.cat([router.scores(row)[0] for row in x.unsqueeze(1)])
    assert torch.equal(alone, router.scores(x)[0])


@pytest.mark.parametrize("name", [name for name in BLOCK_SETS if name.startswith("llada2")])
def test_the_router_chooses_the_experts_of_the_reference(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder, files = decoder_of(name), load_file(GOLDEN / name / "forward.safetensors")
    chosen: dict[int, tuple[Tensor, Tensor]] = {}

    def record(index: int, mlp: ExpertMlp, x: Tensor) -> Tensor:
        experts, weights = choose_experts(*mlp.router.scores(x), mlp.shape)
        chosen[index] = experts, weights * mlp.shape.scale
        return unchanged(mlp, x)

    unchanged = ExpertMlp.forward
    for index, layer in enumerate(decoder.layers):
        if isinstance(layer.mlp, ExpertMlp):
            monkeypatch.setattr(layer.mlp, "forward", partial(record, index, layer.mlp))
    [ids], length = files["block/half_decoded/input_ids"], int(files["block/half_decoded/block_length"])
    forward(decoder, [Part(sequence(ids, length), 0, 0, 0, len(ids))])
    assert chosen
    for index, (experts, weights) in chosen.items():
        ordered, at = experts.sort(dim=-1)
        assert torch.equal(ordered, files[f"routing/layer{index}/experts"])
        torch.testing.assert_close(weights.gather(1, at), files[f"routing/layer{index}/weights"], atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("name", "mode", "complaint"),
    [
        ("sdar/seed1", CacheMode.DUAL, "not possible: sdar models are block-causal; possible: block, none"),
        ("llada/seed1", CacheMode.BLOCK, "llada models are not block-causal; possible: dual, prefix, none"),
    ],
)
def test_a_cache_of_the_other_kind_of_model_is_refused(name: str, mode: CacheMode, complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint):
        check_mode(mode, read_config(Path(COPY / name)))
