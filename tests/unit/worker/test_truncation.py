"""Truncated sampling: top_p, top_k and min_p."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from services.worker.model.sampling import Noise, Vocabulary, best_of, combine_shards
from services.worker.model.truncation import Truncation, lowest_logits
from tests.support.engines import engine_of
from tests.support.random_model import MASK_ID
from tests.support.steps import Decode, decode_together

VOCAB = 12
MASK = VOCAB - 1


def truncation(rows: int, *, top_p: float = 1.0, top_k: int = 0, min_p: float = 0.0, at: float = 1.0) -> Truncation:
    return Truncation(
        rows=torch.arange(rows),
        temperature=torch.full((rows,), at, dtype=torch.float64),
        top_p=torch.full((rows,), top_p, dtype=torch.float64),
        top_k=torch.full((rows,), top_k),
        min_p=torch.full((rows,), min_p, dtype=torch.float64),
    )


def kept(logits: list[float], limits: Truncation) -> list[int]:
    values = torch.tensor([logits])
    is_kept = values[0].double() >= lowest_logits(values, limits, MASK)[0]
    return [token for token in torch.nonzero(is_kept).flatten().tolist() if token != MASK]


def kept_by_definition(logits: list[float], top_p: float, top_k: int, min_p: float, at: float) -> list[int]:
    """vLLM's rules, one token at a time."""
    shares = (torch.tensor(logits[:MASK]).double() / at).softmax(dim=-1).tolist()
    ordered = sorted(range(MASK), key=lambda token: -logits[token])
    ordered = [token for token in ordered if shares[token] >= min_p * max(shares)]
    ordered = ordered[: top_k if top_k > 0 else None]
    total, chosen, before = sum(shares[token] for token in ordered), list[int](), 0.0
    for token in ordered:
        if chosen and before >= top_p * total:
            break
        chosen.append(token)
        before += shares[token]
    return sorted(chosen)


@given(
    order=st.permutations(range(VOCAB)),
    top_p=st.sampled_from([0.0, 0.1, 0.333, 0.777, 0.95, 1.0]),
    top_k=st.sampled_from([-1, 0, 1, 3, 7, 1000]),
    min_p=st.sampled_from([0.0, 0.05, 0.2, 0.9]),
    at=st.sampled_from([0.1, 0.7, 2.0]),
)
def test_the_tokens_kept_are_those_of_the_definition(
    order: list[int], top_p: float, top_k: int, min_p: float, at: float
) -> None:
    logits = [0.61 * place for place in order]
    limits = truncation(1, top_p=top_p, top_k=top_k, min_p=min_p, at=at)
    assert kept(logits, limits) == kept_by_definition(logits, top_p, top_k, min_p, at)


def test_equal_logits_are_kept_together() -> None:
    assert kept([0.0, 2.0, 2.0, 2.0, *[1.0] * 8], truncation(1, top_k=2)) == [1, 2, 3]


def test_rows_that_are_not_truncated_may_draw_any_token() -> None:
    limits = truncation(1, top_k=1)
    assert lowest_logits(torch.randn(3, VOCAB), limits, MASK).isinf().tolist() == [False, True, True]


def draw(values: Tensor, at: float, floor: Tensor | None) -> tuple[Tensor, Tensor]:
    rows = len(values)
    noise = Noise(
        temperature=torch.full((rows,), at, dtype=torch.float64),
        seed=torch.ones(rows, dtype=torch.int64),
        step=torch.zeros(rows, dtype=torch.int64),
        position=torch.arange(rows),
    )
    best = best_of(values, noise, Vocabulary(0, MASK), floor, after_temperature=False)
    tokens, confidences = combine_shards(best.unsqueeze(0))
    return tokens.long(), confidences


def test_tokens_are_drawn_from_the_kept_ones_in_proportion() -> None:
    rows = 20_000
    values = torch.linspace(0, 3, VOCAB).repeat(rows, 1)
    tokens, _ = draw(values, 1.5, lowest_logits(values, truncation(rows, top_k=3, at=1.5), MASK))
    shares = torch.bincount(tokens, minlength=VOCAB).double() / rows
    wanted = torch.zeros(VOCAB, dtype=torch.float64)
    wanted[MASK - 3 : MASK] = (values[0, MASK - 3 : MASK].double() / 1.5).softmax(dim=-1)
    torch.testing.assert_close(shares, wanted, atol=0.012, rtol=0)


def test_the_confidence_is_taken_over_all_tokens() -> None:
    values = torch.randn(50, VOCAB, generator=torch.Generator().manual_seed(0))
    tokens, confidences = draw(values, 1.0, lowest_logits(values, truncation(50, top_p=0.5), MASK))
    wanted = values.double().softmax(dim=-1).gather(1, tokens.unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(confidences, wanted)


def decode_all(temperature: float, limits: list[dict[str, float]]) -> list[list[int]]:
    """The outputs of requests that differ only in these fields, decoded in one batch."""
    decodes = [Decode(i, [5, 6, 7], 16, 16, 0.9, MASK_ID, temperature, seed=3) for i in range(len(limits))]
    decode_together(engine_of(), decodes, dict(enumerate(limits)))
    return [each.output.tolist() for each in decodes]


@pytest.mark.parametrize("limit", [{"top_k": 1}, {"top_p": 0.0}, {"min_p": 1.0}])
def test_a_draw_from_one_token_is_the_greedy_one(limit: dict[str, float]) -> None:
    [greedy] = decode_all(0.0, [{}])
    truncated, free = decode_all(1.0, [limit, {}])
    assert truncated == greedy
    assert free != greedy


def test_the_limits_of_a_request_do_not_change_others() -> None:
    limits: list[dict[str, float]] = [{"top_k": 4}, {}, {"top_p": 0.5, "min_p": 0.1}]
    assert decode_all(1.0, limits) == [decode_all(1.0, [each])[0] for each in limits]


def test_the_limits_have_no_effect_at_temperature_zero() -> None:
    plain, limited = decode_all(0.0, [{}, {"top_p": 0.2, "top_k": 2, "min_p": 0.3}])
    assert limited == plain
