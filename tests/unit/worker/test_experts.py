"""Experts as one product each way: the same as one after another, in a few operations, without a read by the host."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from services.worker.cache.kv_store import KvStore
from services.worker.model import experts
from services.worker.model.attention import attention, varlen
from services.worker.model.decoder import Mlp
from services.worker.model.experts import ExpertMlp
from services.worker.model.families import parse_config
from services.worker.model.families.config import Experts
from services.worker.model.forward_batch import ForwardInputs
from services.worker.model.fused import Fused
from services.worker.model.weights import empty_decoder
from tests.support.golden import COPY

MAX_OPERATIONS, MAX_OF_CANVASES = 30, 23  # of a layer; without attention and cache
WIDTH = 32


def mlp_of(rank: int, ranks: int, kept_groups: int, per_token: int = 3) -> ExpertMlp:
    shape = Experts(0, 16, per_token, 16, 16, 4, kept_groups, 2.5)
    torch.manual_seed(0)
    whole = ExpertMlp(WIDTH, shape, Mlp(WIDTH, 16), 0, 1)
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
@pytest.mark.parametrize("kept_groups", [1, 2, 4])
@pytest.mark.parametrize("tokens", [1, 5, 40])
def test_grouped_products_compute_the_same_as_one_after_another(
    rank: int, ranks: int, kept_groups: int, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlp = mlp_of(rank, ranks, kept_groups)
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
def test_a_layer_of_llada2_has_few_operations(tokens: int) -> None:
    published = json.loads((COPY / "real_configs.json").read_text())["llada2.0-mini"]["config"]
    config = replace(parse_config(published), num_layers=2)  # one without and one with experts
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
