"""LLaDA-8B's dimensions, and the roofline of their steps on a device.

The roofline of a step is the longer of two times: its operations at the rate of a large matrix product, and its bytes
(the weights once, and the cached keys and values) at the rate of a large copy. Both rates are measured first.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from services.worker.model.decoder import PackedDecoder
from services.worker.model.families import ModelConfig
from services.worker.model.weights import empty_decoder
from services.worker.profile.profiler import BLOCK, TYPICAL_TOKENS
from shared.messages.steps import StepKind

LLADA_8B = ModelConfig(
    family="llada",
    num_layers=32,
    width=4096,
    num_heads=32,
    num_kv_heads=32,
    head_dim=128,
    rotary_dim=128,
    mlp_width=12288,
    vocab_size=126464,
    rope_base=500_000.0,
    norm_eps=1e-5,
    qkv_bias=False,
    shifted_logits=False,
    mask_token_id=126336,
    eos_token_id=126081,
    max_length=4096,
)
BFLOAT16_BYTES = 2


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The rates that were measured on the device."""

    flops_per_s: float
    bytes_per_s: float


def work(config: ModelConfig, tokens: int, kind: StepKind) -> tuple[float, float]:
    """Operations and bytes of a step as the profiler runs it; a multiply-add is two operations."""
    sequences = tokens / (BLOCK if kind is StepKind.CACHE else min(tokens, TYPICAL_TOKENS))
    keys = TYPICAL_TOKENS if kind is StepKind.CACHE else min(tokens, TYPICAL_TOKENS)
    rows = sequences * min(BLOCK, keys // 2)  # masked positions; the last layer computes only these to its end
    kv_width = config.num_kv_heads * config.head_dim
    into, after = config.width * (config.width + 2 * kv_width), config.width * (config.width + 3 * config.mlp_width)
    head = config.width * config.vocab_size
    layers = config.num_layers
    linear = tokens * (layers * into + (layers - 1) * after) + rows * (after + head)
    attended = layers * tokens * keys * 2 * config.width  # scores and mix
    cached = 2 * layers * sequences * keys * kv_width if kind is StepKind.CACHE else 0
    return 2 * (linear + attended), BFLOAT16_BYTES * (layers * (into + after) + head + cached)


def roofline_s(config: ModelConfig, tokens: int, kind: StepKind, ceilings: Ceilings) -> float:
    """The shortest possible time of a step on this device, in seconds."""
    operations, read = work(config, tokens, kind)
    return max(operations / ceilings.flops_per_s, read / ceilings.bytes_per_s)


def measure_ceilings(device: torch.device, side: int = 8192, copied: int = 4 << 30) -> Ceilings:
    """Time a product of square bfloat16 matrices, and a copy of this many bytes, which reads and writes each byte."""
    square = torch.randn(side, side, dtype=torch.bfloat16, device=device)
    source = torch.zeros(copied, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    product_s, copy_s = _seconds(lambda: square @ square), _seconds(lambda: target.copy_(source))
    return Ceilings(2 * side**3 / product_s, 2 * len(source) / copy_s)


def _seconds(run: Callable[[], object], repeats: int = 20) -> float:
    synchronize = torch.cuda.synchronize if torch.cuda.is_available() else torch.cpu.synchronize
    run()
    synchronize()
    started = time.perf_counter()
    for _ in range(repeats):
        run()
    synchronize()
    return (time.perf_counter() - started) / repeats


def random_decoder(config: ModelConfig, device: torch.device) -> PackedDecoder:
    """A bfloat16 decoder with weights as large as trained ones."""
    decoder = empty_decoder(config, torch.bfloat16, device)
    torch.manual_seed(0)
    for parameter in decoder.parameters():
        parameter.fill_(1.0) if parameter.ndim == 1 else parameter.normal_(std=0.02)
    return decoder
