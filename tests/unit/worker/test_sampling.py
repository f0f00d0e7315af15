"""Sampling tokens and confidences from logits, also truncated by top_p, top_k and min_p, and the draws of canvases."""

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from services.worker.model import sampling
from services.worker.model.canvas_runner import combine_parts, read_canvas
from services.worker.model.forward_batch import sampling_table
from services.worker.model.sampling import Noise, Truncation, Vocabulary, best_of, combine_shards, lowest_logits
from shared.messages.requests import Sampling
from tests.support.engines import engine_of
from tests.support.random_model import MASK_ID
from tests.support.steps import Decode, decode_together

VOCAB = 12  # the last token is the mask; these logits make it improbable
MASK = VOCAB - 1


def logits(rows: int) -> Tensor:
    values = torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(0)) * 2
    values[:, MASK] = -40
    return values


def pick(
    values: Tensor,
    noise: Noise | None = None,
    floor: Tensor | None = None,
    *,
    after_temperature: bool = False,
    parts: int = 1,
) -> tuple[Tensor, Tensor]:
    """Sample with the vocabulary split into `parts`."""
    columns = VOCAB // parts
    best = [
        best_of(part, noise, Vocabulary(i * columns, MASK), floor, after_temperature=after_temperature)
        for i, part in enumerate(torch.split(values, columns, dim=1))
    ]
    tokens, confidences = combine_shards(torch.stack(best))
    return tokens.long(), confidences


def noise(rows: int, temperature: float) -> Noise:
    return Noise(
        temperature=torch.full((rows,), temperature, dtype=torch.float64),
        seed=torch.ones(rows, dtype=torch.int64),
        step=torch.zeros(rows, dtype=torch.int64),
        position=torch.arange(rows),
    )


@pytest.mark.parametrize("temperature", [1e-38, 5e-324])
@pytest.mark.parametrize("after_temperature", [False, True])
def test_a_temperature_near_0_draws_the_most_probable_token(temperature: float, after_temperature: bool) -> None:
    [applied] = sampling_table([Sampling(temperature=temperature)])["temperature"].tolist()
    tokens, confidences = pick(logits(5), noise(5, applied), after_temperature=after_temperature)
    assert torch.equal(tokens, logits(5).argmax(dim=-1))
    assert confidences.isfinite().all()


def test_greedy_picks_the_most_probable_token_with_its_probability() -> None:
    tokens, confidences = pick(logits(5))
    best = logits(5).double().softmax(dim=-1).max(dim=-1)
    assert torch.equal(tokens, best.indices)
    torch.testing.assert_close(confidences, best.values, atol=1e-6, rtol=0)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_a_row_has_the_same_confidence_alone_with_any_number_of_threads(threads: int) -> None:
    values = torch.randn(8, 150_000, generator=torch.Generator().manual_seed(0))
    vocabulary, before = Vocabulary(0, 149_999), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        together = best_of(values, None, vocabulary, after_temperature=False)
        alone = [best_of(row, None, vocabulary, after_temperature=False) for row in values.unsqueeze(1)]
    finally:
        torch.set_num_threads(before)
    assert torch.equal(torch.cat(alone, dim=1), together)


def test_the_mask_is_never_chosen_but_counts_in_the_softmax() -> None:
    values = logits(5)
    values[:, MASK] = 10
    tokens, confidences = pick(values)
    assert (tokens < MASK).all()
    torch.testing.assert_close(confidences, values.double().softmax(dim=-1)[:, :MASK].max(dim=-1).values)


def test_the_largest_random_number_is_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "mix", lambda x: torch.full_like(x, -1))  # all bits are 1
    assert sampling.gumbel(noise(1, 1.0), torch.arange(VOCAB)).isfinite().all()


@pytest.mark.parametrize("parts", [2, 4])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_split_vocabulary_samples_the_same(parts: int, temperature: float) -> None:
    whole, shared = (pick(logits(50), noise(50, temperature), parts=n) for n in (1, parts))
    assert torch.equal(whole[0], shared[0])
    torch.testing.assert_close(whole[1], shared[1])


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
        if top_p < 1 and chosen and before >= top_p * total:
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


@pytest.mark.parametrize("top_k", [0, 3])
def test_tokens_are_drawn_from_the_kept_ones_in_proportion_at_the_temperature(top_k: int) -> None:
    rows, kept = 20_000, slice(MASK - (top_k or MASK), MASK)
    values = torch.linspace(0, 3, VOCAB).repeat(rows, 1)
    tokens, _ = pick(values, noise(rows, 1.5), lowest_logits(values, truncation(rows, top_k=top_k, at=1.5), MASK))
    wanted = torch.zeros(VOCAB, dtype=torch.float64)
    wanted[kept] = (values[0, kept].double() / 1.5).softmax(dim=-1)
    shares = torch.bincount(tokens, minlength=VOCAB).double() / rows
    torch.testing.assert_close(shares, wanted, atol=0.012, rtol=0)


@pytest.mark.parametrize(("after_temperature", "top_p"), [(False, 1.0), (True, 1.0), (False, 0.5)])
def test_the_confidence_is_the_probability_among_all_tokens(top_p: float, *, after_temperature: bool) -> None:
    values = logits(50)
    floor = lowest_logits(values, truncation(50, top_p=top_p, at=0.5), MASK)
    tokens, confidences = pick(values, noise(50, 0.5), floor, after_temperature=after_temperature)
    probabilities = (values.double() / (0.5 if after_temperature else 1.0)).softmax(dim=-1)
    torch.testing.assert_close(confidences, probabilities.gather(1, tokens.unsqueeze(1)).squeeze(1))


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


WIDTH = 3


def read(logits: Tensor, ranks: int, temperature: float = 0.7, canvas: int = 64) -> tuple[Tensor, Tensor]:
    """The draws, the most probable tokens with their probabilities, the entropies; the mean embeddings."""
    rows, size = logits.shape
    embedding = torch.randn(size, WIDTH, generator=torch.Generator().manual_seed(1))
    counts = torch.arange(rows)
    noise = Noise(torch.full((rows,), temperature, dtype=torch.float64), counts * 0 + 5, counts * 0 + 2, counts)
    found = []
    for first in range(0, size, size // ranks):
        own = slice(first, first + size // ranks)
        weighted = partial(torch.matmul, other=embedding[own])
        found.append(read_canvas(logits[:, own], noise, Vocabulary(first, size), weighted, canvas))
    parts, embeddings = zip(*found, strict=True)
    chosen, _, mean = combine_parts(torch.stack(parts), torch.stack(embeddings))
    return chosen, mean


@pytest.mark.parametrize("size", [210, 512])  # groups of one token, and of 32
def test_a_token_is_drawn_as_often_as_it_is_probable(size: int) -> None:
    rows, temperature = 16_384, 0.7
    logits = torch.randn(size, generator=torch.Generator().manual_seed(0))
    chosen, _ = read(logits.expand(rows, -1), 1, temperature, canvas=4096)
    expected = rows * (logits.double() / temperature).softmax(dim=0)
    found = chosen[0].long().bincount(minlength=size)
    deviation = ((found - expected) ** 2 / expected)[expected >= 5]
    assert deviation.sum() < len(deviation) + 4 * (2 * len(deviation)) ** 0.5
    assert deviation.max() < 20


@pytest.mark.parametrize(("size", "ranks"), [(512, 2), (512, 4), (512, 16), (210, 2)])
def test_ranks_read_together_what_one_reads(size: int, ranks: int) -> None:
    logits = 4 * torch.randn(128, size, generator=torch.Generator().manual_seed(3))
    (one, mean), (all_, mean_of_all) = read(logits, 1), read(logits, ranks)
    assert torch.equal(one[:2], all_[:2])
    assert torch.allclose(one[2:], all_[2:], atol=1e-5)
    assert torch.allclose(mean, mean_of_all, atol=1e-5)
    assert len(set(one[0].tolist())) > 20
