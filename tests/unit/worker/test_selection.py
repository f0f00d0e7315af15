"""The tokens that a step selects, the most probable ones beside them, and the confidence statistics."""

from math import nan
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from services.worker.engine.step_results import summarize
from services.worker.model.forward_batch import NONE, ForwardBatch
from services.worker.model.model_runner import select
from services.worker.model.sampling import Vocabulary, combine_top, top_logits
from shared.arrays import unpack_float32, unpack_int32, unpack_int64
from shared.messages.steps import StepTopTokens
from tests.support.engines import engine_of
from tests.support.random_model import MASK_ID
from tests.support.steps import Decode, decode_together

MASK = 7
NEW, OTHER = 1, 2  # tokens

requests = st.lists(
    st.tuples(st.floats(0, 1), st.lists(st.floats(0, 1), min_size=1, max_size=8)), min_size=1, max_size=6
)
edited = st.tuples(st.sampled_from([MASK, NEW, OTHER]), st.floats(0, 1))  # current token, probability of NEW


def decide(requests: list[tuple[float, list[float]]], *, is_strict: bool = False) -> list[list[bool]]:
    """By request: a threshold and the confidences of its masks."""
    rows = [(MASK, c, threshold) for threshold, own in requests for c in own]
    selected = chosen(rows, [len(own) for _, own in requests], is_strict=is_strict)
    return [[selected.pop(0) for _ in own] for _, own in requests]


def chosen(rows: list[tuple[int, float, float]], counts: list[int], *, is_strict: bool) -> list[bool]:
    """By candidate: its current token, the probability of NEW, and its limit."""
    current, confidences, limits = (np.array(column) for column in zip(*rows, strict=True))
    batch = ForwardBatch(NONE, NONE, NONE, NONE, NONE, np.array(counts), current=current, limits=limits)
    selected: list[bool] = select(np.full(len(rows), NEW), confidences, batch, MASK, is_strict=is_strict).tolist()
    return selected


def test_a_strict_threshold_must_be_exceeded() -> None:
    assert decide([(0.7, [0.7, 0.69, 0.9])], is_strict=True) == [[False, False, True]]


def test_a_confidence_that_is_not_a_number_counts_as_the_least() -> None:
    assert decide([(0.9, [nan, 0.0]), (0.9, [nan, nan])]) == [[False, True], [True, False]]


@given(requests)
def test_the_choice_matches_the_rule_in_plain_python(requests: list[tuple[float, list[float]]]) -> None:
    for (threshold, own), chosen in zip(requests, decide(requests), strict=True):
        best = own.index(max(own))
        assert chosen == [c >= threshold or i == best for i, c in enumerate(own)]


@given(st.lists(edited, min_size=1, max_size=8), st.floats(0, 1), st.floats(0, 1))
def test_edits_match_the_rule_in_plain_python(
    rows: list[tuple[int, float]], threshold: float, edit_threshold: float
) -> None:
    masks = [i for i, (token, _) in enumerate(rows) if token == MASK]
    best = max(masks, key=lambda i: rows[i][1], default=None)
    wanted = [
        i == best or c > threshold if token == MASK else token != NEW and c > edit_threshold
        for i, (token, c) in enumerate(rows)
    ]
    limited = [(token, c, threshold if token == MASK else edit_threshold) for token, c in rows]
    assert chosen(limited, [len(rows)], is_strict=True) == wanted


VOCAB, ROWS, K = 12, 5, 4


def logits() -> Tensor:
    return torch.randn(ROWS, VOCAB, generator=torch.Generator().manual_seed(0)) * 2


@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize("temperature", [None, 0.0, 0.5])
def test_they_are_the_most_probable_tokens_but_for_the_mask(parts: int, temperature: float | None) -> None:
    values, rows, columns = logits(), torch.tensor([0, 2, 4]), VOCAB // parts
    scale = None if temperature is None else torch.full((ROWS,), temperature, dtype=torch.float64)
    shards = enumerate(torch.split(values, columns, dim=1))
    top = torch.stack([top_logits(part, rows, K, Vocabulary(i * columns, MASK), scale) for i, part in shards])
    scaled = values.double() / (temperature or 1.0)
    tokens, confidences = combine_top(top, scaled.logsumexp(dim=-1)[rows])
    probabilities = scaled.softmax(dim=-1)[rows]
    probabilities[:, MASK] = 0
    best = probabilities.sort(dim=-1, descending=True)
    assert tokens.long().tolist() == best.indices[:, :K].tolist()
    torch.testing.assert_close(confidences, best.values[:, :K], atol=1e-6, rtol=0)


def test_a_vocabulary_that_is_too_small_is_padded_with_probability_zero() -> None:
    top = top_logits(logits(), torch.tensor([1]), 2 * VOCAB, Vocabulary(0, MASK), None).unsqueeze(0)
    _, confidences = combine_top(top, logits().double().logsumexp(dim=-1)[1:2])
    assert confidences[0, VOCAB:].tolist() == [0.0] * VOCAB


def decode(wanted: list[int], temperature: float = 0.0) -> tuple[list[Decode], list[list[StepTopTokens]]]:
    """Decode a request for each number of wanted tokens. Returns: the requests, and the results of each."""
    decodes = [Decode(i, [1, 2, i, 4], 16, 8, 0.9, MASK_ID, temperature, seed=i) for i in range(len(wanted))]
    found: list[list[StepTopTokens]] = [[] for _ in wanted]
    for results in decode_together(
        engine_of(), decodes, {i: {"top_logprobs": count} for i, count in enumerate(wanted)}
    ):
        for each in results.top_tokens:
            found[each.ticket].append(each)
        assert [each.ticket for each in results.top_tokens] == [
            ticket for ticket in unpack_int64(results.tickets).tolist() if wanted[ticket]
        ]
    return decodes, found


def test_each_unmasked_position_has_as_many_as_its_client_wants() -> None:
    decodes, found = decode([3, 0, 5])
    assert found[1] == []
    for each, k in ((0, 3), (2, 5)):
        steps = zip(found[each], decodes[each].trace, decodes[each].confidences, strict=True)
        for top, (_, positions, tokens), confidences in steps:
            assert unpack_int32(top.positions).tolist() == positions
            assert unpack_int32(top.tokens).reshape(-1, k)[:, 0].tolist() == tokens
            probabilities = unpack_float32(top.confidences).reshape(-1, k)
            assert probabilities[:, 0].tolist() == pytest.approx(confidences, rel=1e-5)
            assert (np.diff(probabilities, axis=1) <= 0).all()


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_they_change_no_text(temperature: float) -> None:
    plain, _ = decode([0, 0, 0], temperature)
    wanted, _ = decode([4, 0, 20], temperature)
    assert [each.trace for each in wanted] == [each.trace for each in plain]


@given(st.lists(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=9), min_size=1, max_size=4))
def test_statistics_cover_only_known_confidences(rows: list[list[float]]) -> None:
    known = np.full((len(rows), 10), np.nan, dtype=np.float32)
    for row, values in zip(known, rows, strict=True):
        row[: len(values)] = values
    wanted = [[np.min(v), np.quantile(v, 0.25), np.quantile(v, 0.5), np.mean(v), np.quantile(v, 0.75)] for v in rows]
    np.testing.assert_allclose(summarize(known), wanted, atol=1e-6)


@given(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=40), st.integers(0, 100), st.randoms())
def test_the_statistics_of_a_request_do_not_depend_on_its_company(
    values: list[float], width: int, random: Random
) -> None:
    alone = np.array([values], dtype=np.float32)
    random.shuffle(values)
    together = np.full((2, len(values) + width), np.nan, dtype=np.float32)
    together[0, : len(values)], together[1] = values, 0.5
    assert summarize(together)[0].tolist() == summarize(alone)[0].tolist()
