"""Choice reads: one step gives the probability of each whole label, and writes one of them."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from services.worker.engine.batch import Part, pack
from services.worker.engine.cache_mode import CacheMode
from services.worker.engine.engine import Engine, EngineLimits
from services.worker.engine.sequence_state import open_sequence
from services.worker.model.decoder import PackedDecoder
from services.worker.model.model_runner import Runner
from shared.arrays import Float64, pack_int32, unpack_float32
from shared.messages.steps import RequestState
from tests.support.packed_forward import forward_packed
from tests.support.random_model import MASK_ID, random_decoder
from tests.support.steps import Decode, jobs_for, read_results, run_step

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
        logprobs = decoder.logits(hidden).double().log_softmax(dim=-1).numpy()
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
