"""The layers on a CPU."""

from typing import cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from services.worker.model.cpu_layers import OneDnnLinear, ShortRmsNorm, can_pack, pack_for_cpu
from services.worker.model.decoder import Layer, PackedDecoder
from services.worker.model.row_padding import num_padded_rows
from tests.support.random_model import random_decoder

WIDTH, COLUMNS, MOST = 48, 100, 600
ROWS = torch.randn(MOST, WIDTH, generator=torch.Generator().manual_seed(0))
WEIGHT = torch.randn(COLUMNS, WIDTH, generator=torch.Generator().manual_seed(1))
LINEAR = OneDnnLinear(WEIGHT)
ALL = LINEAR(ROWS)
NO_BFLOAT16 = pytest.mark.skipif(not can_pack(torch.bfloat16), reason="oneDNN packs no bfloat16 weights on this CPU")
BFLOAT16 = pytest.param(torch.bfloat16, 2e-2, marks=NO_BFLOAT16)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), BFLOAT16])
@pytest.mark.parametrize("has_bias", [False, True])
def test_the_product_is_that_of_the_matrices(dtype: torch.dtype, tolerance: float, has_bias: bool) -> None:
    x, weight = ROWS.to(dtype), WEIGHT.to(dtype)
    bias = torch.randn(COLUMNS).to(dtype) if has_bias else None
    exact = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    found = OneDnnLinear(weight, bias)(x)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), exact, rtol=tolerance, atol=tolerance * 10)


@given(first=st.integers(0, MOST - 1), count=st.integers(1, MOST))
def test_a_row_has_the_same_bits_in_any_number_of_rows(first: int, count: int) -> None:
    assert torch.equal(LINEAR(ROWS[first : first + count]), ALL[first : first + count])


@given(first=st.integers(0, MOST - 1), count=st.integers(1, MOST), scale=st.sampled_from([1e-20, 1e-3, 1.0, 1e4]))
def test_a_norm_is_that_of_torch_and_has_the_same_bits_in_any_number_of_rows(
    first: int, count: int, scale: float
) -> None:
    norm = nn.RMSNorm(WIDTH, 1e-5)
    norm.weight.data.copy_(WEIGHT[0])
    short, rows = ShortRmsNorm(norm), scale * ROWS
    found = short(rows)
    torch.testing.assert_close(found, norm(rows), rtol=1e-5, atol=1e-25)
    assert torch.equal(short(rows[first : first + count]), found[first : first + count])


@given(st.integers(1, 1 << 16))
def test_rows_are_padded_to_few_numbers_that_are_little_larger(rows: int) -> None:
    padded = num_padded_rows(rows)
    assert rows <= padded < rows + max(16, rows / 8)
    assert num_padded_rows(padded) == padded


def test_the_routines_of_all_batches_fit_into_those_that_are_kept() -> None:
    assert len({num_padded_rows(rows) for rows in range(1, 1 << 14)}) * 5 < 1024


def test_a_decoder_whose_weights_cannot_be_packed_keeps_its_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    plain, packed = random_decoder(torch.bfloat16), random_decoder(torch.bfloat16)
    pack_for_cpu(packed)
    hidden = torch.randn(5, plain.config.width, generator=torch.Generator().manual_seed(2)).bfloat16()
    assert torch.equal(packed.logits(hidden), plain.logits(hidden))


@pytest.mark.parametrize("is_tied", [False, True])
def test_a_packed_decoder_computes_the_same(is_tied: bool) -> None:
    plain, packed = random_decoder(), random_decoder()
    if is_tied:
        for decoder in (plain, packed):
            decoder.head = None
    pack_for_cpu(packed)
    hidden = torch.randn(5, plain.config.width, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(packed.logits(hidden), plain.logits(hidden), rtol=1e-5, atol=1e-5)
    for ours, theirs in zip(layers_of(packed), layers_of(plain), strict=True):
        torch.testing.assert_close(ours.mlp(hidden), theirs.mlp(hidden), rtol=1e-5, atol=1e-5)
    assert not [module for module in packed.modules() if isinstance(module, nn.Linear | nn.RMSNorm)]


def layers_of(decoder: PackedDecoder) -> list[Layer]:
    return cast("list[Layer]", list(decoder.layers))
