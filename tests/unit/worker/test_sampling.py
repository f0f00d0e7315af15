"""Sampling tokens and confidences from logits."""

import pytest
import torch
from torch import Tensor

from services.worker.model import sampling
from services.worker.model.sampling import Noise, Vocabulary, best_of, combine_shards

VOCAB = 8  # the last token is the mask; these logits make it improbable


def logits(rows: int) -> Tensor:
    values = torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(0)) * 2
    values[:, -1] = -40
    return values


def pick(values: Tensor, noise: Noise | None, *, after_temperature: bool, parts: int = 1) -> tuple[Tensor, Tensor]:
    """Sample with the vocabulary split into `parts`."""
    columns = VOCAB // parts
    best = [
        best_of(part, noise, Vocabulary(i * columns, VOCAB - 1), after_temperature=after_temperature)
        for i, part in enumerate(torch.split(values, columns, dim=1))
    ]
    tokens, confidences = combine_shards(torch.stack(best))
    return tokens.long(), confidences


def noise(rows: int, temperature: float, seed: int = 1, step: int = 0) -> Noise:
    return Noise(
        temperature=torch.full((rows,), temperature, dtype=torch.float64),
        seed=torch.full((rows,), seed),
        step=torch.full((rows,), step),
        position=torch.arange(rows),
    )


def test_greedy_picks_the_most_probable_token_with_its_probability() -> None:
    tokens, confidences = pick(logits(5), None, after_temperature=False)
    best = logits(5).double().softmax(dim=-1).max(dim=-1)
    assert torch.equal(tokens, best.indices)
    torch.testing.assert_close(confidences, best.values, atol=1e-6, rtol=0)


def test_temperature_zero_is_greedy_whatever_the_seed() -> None:
    assert torch.equal(
        pick(logits(5), noise(5, 0.0), after_temperature=False)[0], pick(logits(5), None, after_temperature=False)[0]
    )


def test_tokens_are_drawn_from_the_softmax_at_the_temperature() -> None:
    rows = 20_000
    one = logits(1)
    tokens, _ = pick(one.expand(rows, VOCAB), noise(rows, 1.5), after_temperature=False)
    shares = torch.bincount(tokens, minlength=VOCAB) / rows
    torch.testing.assert_close(shares.double(), (one[0].double() / 1.5).softmax(dim=-1), atol=0.012, rtol=0)


def test_the_confidence_is_the_raw_probability_of_the_drawn_token() -> None:
    tokens, confidences = pick(logits(9), noise(9, 1.0), after_temperature=False)
    wanted = logits(9).double().softmax(dim=-1).gather(1, tokens.unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(confidences, wanted)


def test_after_temperature_the_confidence_is_of_that_distribution() -> None:
    tokens, confidences = pick(logits(9), noise(9, 0.5), after_temperature=True)
    wanted = (logits(9).double() / 0.5).softmax(dim=-1).gather(1, tokens.unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(confidences, wanted)


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
    values[:, -1] = 10
    tokens, confidences = pick(values, None, after_temperature=False)
    assert (tokens < VOCAB - 1).all()
    torch.testing.assert_close(confidences, values.double().softmax(dim=-1)[:, :-1].max(dim=-1).values)


def test_the_largest_random_number_is_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "mix", lambda x: torch.full_like(x, -1))  # all bits are 1
    assert sampling.gumbel(noise(1, 1.0), torch.arange(VOCAB)).isfinite().all()


@pytest.mark.parametrize("parts", [2, 4])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_split_vocabulary_samples_the_same(parts: int, temperature: float) -> None:
    whole, shared = (pick(logits(50), noise(50, temperature), after_temperature=False, parts=n) for n in (1, parts))
    assert torch.equal(whole[0], shared[0])
    torch.testing.assert_close(whole[1], shared[1])
