"""Layers on a CPU, and experts as one product each way: the same as one after another, without a read by the host."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from services.worker.cache.kv_store import KvStore
from services.worker.model import experts
from services.worker.model.attention import attention, varlen
from services.worker.model.cpu_layers import OneDnnLinear, ShortRmsNorm, can_pack, pack_for_cpu
from services.worker.model.decoder import Layer, Mlp, PackedDecoder
from services.worker.model.experts import ExpertMlp
from services.worker.model.families import parse_config
from services.worker.model.families.config import Experts
from services.worker.model.forward_batch import ForwardInputs
from services.worker.model.fused import Fused
from services.worker.model.row_padding import num_padded_rows
from services.worker.model.weights import empty_decoder
from tests.support.golden import COPY
from tests.support.random_model import random_decoder

ROW_WIDTH, COLUMNS, MOST = 48, 100, 600
ROWS = torch.randn(MOST, ROW_WIDTH, generator=torch.Generator().manual_seed(0))
WEIGHT = torch.randn(COLUMNS, ROW_WIDTH, generator=torch.Generator().manual_seed(1))
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
    norm = nn.RMSNorm(ROW_WIDTH, 1e-5)
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


MAX_OPERATIONS, MAX_OF_CANVASES = 30, 23  # of a layer; without attention and cache
WIDTH = 32


SHAPES = [Experts(0, 16, 3, 16, 16, 4, kept_groups, 2.5) for kept_groups in (1, 2, 4)]
SHAPES += [Experts(0, 16, 3, 16, 0, 1, 1, 1.0, is_softmax=True, is_normalized=False)]


def mlp_of(rank: int, ranks: int, shape: Experts) -> ExpertMlp:
    torch.manual_seed(0)
    whole = ExpertMlp(WIDTH, shape, Mlp(WIDTH, 16) if shape.shared_width else None, 0, 1)
    for parameter in whole.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    mlp = ExpertMlp(WIDTH, shape, whole.shared, rank, ranks)
    own = slice(mlp.first, mlp.first + mlp.count)
    for name, parameter in mlp.experts.named_parameters():
        parameter.data = whole.experts.get_parameter(name)[own]
    mlp.to(torch.bfloat16).router = whole.router  # always in float32
    return mlp


@torch.inference_mode()
@pytest.mark.parametrize(("rank", "ranks"), [(0, 1), (0, 2), (1, 2), (3, 4)])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("tokens", [1, 5, 40])
def test_grouped_products_compute_the_same_as_one_after_another(
    rank: int, ranks: int, shape: Experts, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlp = mlp_of(rank, ranks, shape)
    x = torch.randn(tokens, WIDTH, dtype=torch.bfloat16)
    one_by_one = mlp(x)
    monkeypatch.setattr(experts, "has_grouped_products", lambda *_: True)
    torch.testing.assert_close(mlp(x), one_by_one, atol=0.05, rtol=0.05)


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what torch dispatches, without views; `rms_norm` and a `Fused` function count as the one operation that
    they are on CUDA."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with self:  # in inference mode, composite operations arrive whole
            parts = func.decompose(*args, **(kwargs or {}))
        if parts is not NotImplemented:
            return parts
        if not func.is_view:
            self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))

    def call(self, fused: Fused[..., Any], *args: Any) -> Any:
        self.names.append(fused.function.__name__)
        with _disable_current_modes():
            return fused.function(*args)


def check_operations(layer: Callable[[Tensor], Tensor], x: Tensor, most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:  # one operation, of its shape
        patch.setattr(torch.nn.functional, "rms_norm", lambda x, *_, **__: torch.neg(x))
        for _ in range(2):  # the first makes a constant
            counted = Operations()
            patch.setattr(Fused, "__call__", lambda *args, counted=counted: counted.call(*args))
            with counted:
                assert layer(x).shape == x.shape
    assert counted.names.count("_grouped_mm") == 2
    assert len(counted.names) <= most, counted.names
    assert not {"_local_scalar_dense", "nonzero"} & set(counted.names)


@torch.inference_mode()
@pytest.mark.parametrize("tokens", [32, 1024])
@pytest.mark.parametrize("name", ["llada2.0-mini", "sdar-30b-a3b", "llada-moe-7b-a1b"])
def test_a_layer_with_experts_has_few_operations(name: str, tokens: int) -> None:
    published = json.loads((COPY / "real_configs.json").read_text())[name]["config"]
    config = replace(parse_config(published), num_layers=2)  # LLaDA2's first layer has none
    decoder = empty_decoder(config, torch.bfloat16, torch.device("meta"))
    store = KvStore(decoder.kv_shape, 2 * tokens)
    row, spans = torch.empty(tokens, dtype=torch.int64, device="meta"), torch.empty(2, dtype=torch.int32, device="meta")
    inputs = ForwardInputs(tokens, tokens, row, row, row, row, spans, spans, spans[:1])
    x = torch.empty(tokens, config.width, dtype=torch.bfloat16, device="meta")
    turns = torch.empty(tokens, 1, config.rotary_dim // 2, dtype=torch.complex64, device="meta")
    attend = attention(inputs, store, varlen)
    check_operations(lambda x: decoder.layers[1](x, turns, attend), x, MAX_OPERATIONS)


@torch.inference_mode()
def test_a_layer_of_diffusion_gemma_has_few_operations() -> None:
    published = json.loads((COPY / "real_configs.json").read_text())["diffusiongemma-26b-a4b"]["config"]
    config = parse_config(published)
    config = replace(config, num_layers=1, own_attention=config.own_attention[:1])
    decoder = empty_decoder(config, torch.bfloat16, torch.device("meta"))
    x = torch.empty(256, config.width, dtype=torch.bfloat16, device="meta")
    turns = torch.empty(256, 1, config.rotary_dim // 2, dtype=torch.complex64, device="meta")
    check_operations(
        lambda x: decoder.layers[0](x, turns, x[:, :1], lambda _layer, q, _kv, _rows: q), x, MAX_OF_CANVASES
    )
