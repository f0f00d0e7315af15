"""The draws of canvases: by probability, and the same ones on any number of ranks."""

import pytest
import torch
from torch import Tensor

from services.worker.model.canvas_sampling import combine_parts, read_canvas
from services.worker.model.sampling import Noise, Vocabulary

WIDTH = 3


def read(logits: Tensor, ranks: int, temperature: float = 0.7, canvas: int = 64) -> tuple[Tensor, Tensor]:
    """The draws, the most probable tokens with their probabilities, the entropies; the mean embeddings."""
    rows, size = logits.shape
    embedding = torch.randn(size, WIDTH, generator=torch.Generator().manual_seed(1))
    counts = torch.arange(rows)
    noise = Noise(torch.full((rows,), temperature, dtype=torch.float64), counts * 0 + 5, counts * 0 + 2, counts)
    parts, embeddings = zip(
        *(
            read_canvas(
                logits[:, first : first + size // ranks],
                noise,
                Vocabulary(first, size),
                lambda terms, first=first: terms @ embedding[first : first + size // ranks],  # type: ignore[misc]
                canvas,
            )
            for first in range(0, size, size // ranks)
        ),
        strict=True,
    )
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
