"""The most probable tokens beside each chosen one."""

import numpy as np
import pytest
import torch
from torch import Tensor

from services.worker.model.sampling import Vocabulary
from services.worker.model.top_logits import combine_top, top_logits
from shared.arrays import unpack_float32, unpack_int32, unpack_int64
from shared.messages.steps import StepTopTokens
from tests.support.engines import engine_of
from tests.support.random_model import MASK_ID
from tests.support.steps import Decode, decode_together

VOCAB, ROWS, K = 12, 5, 4
MASK = 7


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
