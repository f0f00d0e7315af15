"""Labels, of which one step writes one, and penalties and biases, as a plain computation has them."""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from torch import Tensor

from services.worker.engine.batch import Part, pack
from services.worker.engine.cache_mode import CacheMode
from services.worker.engine.engine import Engine, EngineLimits
from services.worker.engine.sequence_state import open_sequence
from services.worker.model.decoder import PackedDecoder
from services.worker.model.logit_changes import MIN_DIVISOR, RequestChanges, change_logits
from services.worker.model.model_runner import Runner
from shared.arrays import Float64, pack_int32, unpack_float32
from shared.messages.requests import Sampling
from shared.messages.steps import RequestState
from tests.support.engines import engine_of, random_runner
from tests.support.packed_forward import forward_packed
from tests.support.random_model import MASK_ID, random_decoder
from tests.support.steps import Decode, jobs_for, read_results, run_step
from tests.support.tiny_model import BLOCK_CAUSAL

LABELS = [[5, 6], [5, 7, 8], [9]]
ENDS = [1, 2]
PROMPT, BLOCK = [11, 12, 13], 8


def with_labels(state: RequestState, labels: Sequence[Sequence[int]] = LABELS) -> RequestState:
    return replace(state, choices=[pack_int32(label) for label in labels], end_ids=pack_int32(ENDS))


def decode(
    runner: Runner,
    others: int = 0,
    *,
    labels: Sequence[Sequence[int]] = LABELS,
    temperature: float = 0.0,
    seed: int = 0,
) -> tuple[Decode, list[Float64]]:
    """Decode one request with labels, beside others without. Returns: it, and the probabilities of each step."""
    engine = Engine(runner, CacheMode.NONE, EngineLimits(1024, 8), "a-1")
    mine = Decode(0, PROMPT, 2 * BLOCK, BLOCK, 0.9, MASK_ID, temperature, seed)
    decodes = [mine, *(Decode(i, [1, i, 4], BLOCK, BLOCK, 0.5, MASK_ID) for i in range(1, others + 1))]
    found: list[Float64] = []
    while not mine.done and not set(ENDS) & set(mine.output.tolist()):
        jobs = jobs_for([each for each in decodes if not each.done])
        states = [s if s.ticket else with_labels(s, labels) for s in jobs.states]
        results = run_step(engine, replace(jobs, states=states))
        assert not results.failures
        assert [each.ticket for each in results.choices] == [0]
        found += [unpack_float32(each.probabilities).astype(np.float64) for each in results.choices]
        read_results(results, decodes)
    return mine, found


def expected(decoder: PackedDecoder) -> Float64:
    """The probability of each label by the model's predictions for an output of masks."""
    state = Decode(0, PROMPT, 2 * BLOCK, BLOCK, 0.9, MASK_ID).state
    batch = pack([Part(open_sequence(state, decoder.config), 0, 0, 0, len(PROMPT) + 2 * BLOCK)], decoder.config)
    with torch.inference_mode():
        hidden = forward_packed(decoder, batch, None)[len(PROMPT) :]
        return shares_of_labels(decoder.logits(hidden).double().log_softmax(dim=-1).numpy())


def shares_of_labels(logprobs: Float64) -> Float64:
    """The probability of each label. `logprobs`: of the output's tokens, by position."""
    scores = [
        sum(logprobs[at, token] for at, token in enumerate(label)) + np.logaddexp.reduce(logprobs[len(label), ENDS])
        for label in LABELS
    ]
    probabilities: Float64 = np.exp(np.array(scores) - np.logaddexp.reduce(scores))
    return probabilities


@pytest.mark.parametrize("others", [0, 3])
def test_one_step_gives_the_probability_of_each_label_and_writes_the_best(others: int) -> None:
    mine, [probabilities] = decode(Runner(random_decoder()), others)
    np.testing.assert_allclose(probabilities, expected(random_decoder()), rtol=1e-4)
    best = LABELS[int(probabilities.argmax())]
    written = mine.output[:BLOCK].tolist()
    assert written[: len(best)] == best
    assert set(written[len(best) :]) <= set(ENDS)
    assert all(0 < each <= 1 for each in mine.confidences[0])


def test_with_shifted_logits_the_block_before_predicts_a_labels_first_token() -> None:
    fast_dllm = BLOCK_CAUSAL | {"architectures": ["Fast_dLLM_QwenForCausalLM"], "bd_size": BLOCK, "vocab_size": 64}
    ids = {"max_position_embeddings": 128, "mask_token_id": MASK_ID, "eos_token_id": 1}
    decoder, prompt = random_decoder(config=fast_dllm | ids), list(range(11, 11 + BLOCK))
    mine = Decode(0, prompt, BLOCK, BLOCK, 0.9, MASK_ID, is_aligned=True)
    part = Part(open_sequence(mine.state, decoder.config), 0, 1, 0, 2 * BLOCK)
    with torch.inference_mode():
        hidden = forward_packed(decoder, pack([part], decoder.config), None)
        logprobs = decoder.logits(hidden).double().log_softmax(dim=-1).numpy()[BLOCK - 1 :]
    jobs = jobs_for([mine])
    engine = Engine(Runner(decoder, 256), CacheMode.BLOCK, EngineLimits(1024, 8), "a-1")
    results = run_step(engine, replace(jobs, states=[with_labels(state) for state in jobs.states]))
    [found] = [unpack_float32(each.probabilities) for each in results.choices]
    np.testing.assert_allclose(found, shares_of_labels(logprobs), rtol=1e-4)


def test_a_temperature_draws_labels_by_their_probability() -> None:
    runner, drawn = Runner(random_decoder()), np.zeros(len(LABELS))
    for seed in range(200):
        mine, [probabilities] = decode(runner, temperature=1.0, seed=seed)
        drawn[[mine.output.tolist()[: len(label)] == label for label in LABELS].index(True)] += 1
    np.testing.assert_allclose(drawn / drawn.sum(), probabilities, atol=0.15)
    alone, in_company = (decode(runner, others, temperature=1.0, seed=7)[0].output for others in (0, 2))
    assert alone.tolist() == in_company.tolist()


def test_labels_that_begin_with_the_output_so_far_remain() -> None:
    state = Decode(0, PROMPT, 2 * BLOCK, BLOCK, 0.9, MASK_ID).state
    sequence = open_sequence(with_labels(state, [[5] * 10, [5] * 9 + [6], [7, 8]]), random_decoder().config)
    assert sequence.possible_choices(0).tolist() == [0, 1, 2]
    sequence.canvas[len(PROMPT) :][:BLOCK] = 5
    assert sequence.possible_choices(BLOCK).tolist() == [0, 1]


def test_a_label_of_two_blocks_takes_two_steps() -> None:
    mine, probabilities = decode(Runner(random_decoder()), labels=[[5] * 9 + [6], [5] * 10])
    assert len(probabilities) == len(mine.trace) == 2
    assert mine.output[:9].tolist() == [5] * 9
    assert mine.output[9] in (5, 6)
    assert set(mine.output[10:].tolist()) <= set(ENDS)
    assert probabilities[0].tolist() == pytest.approx([0.5, 0.5])  # equal within the first block


REPEATED = [5, 6, 7, 6]
ALL: dict[str, Any] = {"presence_penalty": 0.5, "frequency_penalty": 0.75, "repetition_penalty": 1.5}
FIELDS: list[dict[str, Any]] = [
    {},
    {"presence_penalty": 2.0},
    {"frequency_penalty": 1.5},
    {"frequency_penalty": -1.0},
    {"repetition_penalty": 3.0},
    {"logit_bias": {3: 2.0, 6: -100.0}},
    {**ALL, "logit_bias": {2: 1.0, 5: 0.25, MASK_ID: 3.0}},
]


def plain(logits: Float64, sampling: Sampling, prompt: list[int], written: list[int]) -> Float64:
    """vLLM's rules, one position and one token at a time."""
    changed = logits.copy()
    for token in range(len(changed)):
        changed[token] += sampling.logit_bias.get(token, 0.0)
        if token in prompt or token in written:
            divisor = max(sampling.repetition_penalty, MIN_DIVISOR)
            changed[token] = changed[token] / divisor if changed[token] > 0 else changed[token] * divisor
        changed[token] -= sampling.frequency_penalty * written.count(token)
        changed[token] -= sampling.presence_penalty * (token in written)
    return changed


@given(
    prompt=st.lists(st.integers(0, 11), max_size=6),
    written=st.lists(st.integers(0, 11), max_size=10),
    fields=st.sampled_from(
        [*FIELDS[:5], {"repetition_penalty": 5e-324}, {**ALL, "logit_bias": {0: -3.0, 11: 2.0, 4: 100.0}}]
    ),
    parts=st.sampled_from([1, 2, 3]),
)
def test_logits_are_those_of_a_plain_computation(
    prompt: list[int], written: list[int], fields: dict[str, Any], parts: int
) -> None:
    values, sampling = np.random.default_rng(0).normal(size=(4, 12)), Sampling(**fields)
    changes = RequestChanges.of(sampling, np.array(prompt, np.int32))
    found = changes.after(np.array(written, np.int32), slice(1, 3))
    shards = [torch.tensor(shard) for shard in np.split(values, parts, axis=1)]
    for at, shard in enumerate(shards):
        change_logits(shard, [found], at * 12 // parts, lambda arrays: [torch.from_numpy(each) for each in arrays])
    wanted = values.copy()
    wanted[1:3] = [plain(row, sampling, prompt, written) for row in values[1:3]]
    np.testing.assert_allclose(torch.cat(shards, dim=1).numpy(), wanted)


class RecordedLogits:
    """A decoder's head, with the logits that it gave."""

    def __init__(self, runner: Runner) -> None:
        self._logits, self.last = runner.decoder.logits, np.zeros((0, 0))

    def __call__(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self._logits(hidden)
        self.last = logits.double().numpy().copy()
        return logits


def step(engine: Engine, decodes: list[Decode], fields: list[dict[str, Any]], *, again: bool = False) -> None:
    """`again`: with the states of requests that ran elsewhere."""
    jobs = jobs_for(decodes)
    states = [decode.state for decode in decodes] if again else jobs.states
    states = [msgspec.structs.replace(state, **fields[state.ticket]) for state in states]
    results = run_step(engine, msgspec.structs.replace(jobs, states=states))
    assert not results.failures
    read_results(results, decodes)


def decode_of(ticket: int, threshold: float, temperature: float = 0.0) -> Decode:
    return Decode(ticket, REPEATED, 16, 8, threshold, MASK_ID, temperature, seed=3)


def decode_all(fields: list[dict[str, Any]], *, temperature: float = 0.0, moves: bool = False) -> list[list[int]]:
    """The outputs of requests that differ only in these fields. `moves`: another instance runs each step."""
    decodes, engine = [decode_of(i, 0.3, temperature) for i in range(len(fields))], engine_of()
    while left := [each for each in decodes if not each.done]:
        step(engine_of() if moves else engine, left, fields, again=moves)
    return [each.output.tolist() for each in decodes]


@pytest.mark.parametrize("fields", FIELDS)
def test_each_step_writes_the_token_of_a_plain_computation(
    fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = random_runner()
    recorded = RecordedLogits(runner)
    monkeypatch.setattr(runner.decoder, "logits", recorded)
    decode, engine, sampling = decode_of(0, 1.0), engine_of(), Sampling(**fields)
    while not decode.done:
        masks = np.flatnonzero(decode.output[8 * decode.block : 8 * decode.block + 8] == MASK_ID) + 8 * decode.block
        written = [token for token in decode.output.tolist() if token not in (MASK_ID, runner.config.eos_token_id)]
        step(engine, [decode], [fields])
        found: list[tuple[float, int, int]] = []
        for position, row in zip(masks.tolist(), recorded.last, strict=False):
            changed = plain(row, sampling, REPEATED, written)
            total = np.logaddexp.reduce(changed)
            changed[MASK_ID] = -np.inf
            found.append((float(np.exp(changed.max() - total)), -position, int(changed.argmax())))
        confidence, position, token = max(found)
        assert decode.trace[-1][1:] == ([-position], [token])
        assert decode.confidences[-1] == pytest.approx([confidence], rel=1e-4)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_text_is_the_same_alone_together_and_on_other_instances(temperature: float) -> None:
    alone = [decode_all([each], temperature=temperature)[0] for each in FIELDS]
    assert decode_all(FIELDS, temperature=temperature) == alone
    assert decode_all(FIELDS, temperature=temperature, moves=True) == alone


def test_labels_are_chosen_without_penalties() -> None:
    labels: dict[str, Any] = {"choices": [pack_int32([5, 6]), pack_int32([9])], "end_ids": pack_int32([1])}
    fields = [labels, labels | ALL | {"logit_bias": {9: 100.0}}]
    usual, changed = [decode_of(ticket, 0.9) for ticket in range(2)]
    step(engine_of(), [usual, changed], fields)
    assert changed.output.tolist() == usual.output.tolist()
