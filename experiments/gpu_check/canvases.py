"""Models that denoise canvases, in DiffusionGemma's shapes: attention in each layer, and the compiled functions."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from experiments.gpu_check.findings import Findings, Setup
from experiments.gpu_check.kernels import MAX_ERROR, OperatorNames, missing_feature
from experiments.gpu_check.roofline import random_decoder
from services.worker.model.canvas_decoder import CanvasDecoder
from services.worker.model.canvas_runner import CanvasRunner
from services.worker.model.families import ModelConfig, parse_config
from services.worker.model.forward_batch import ForwardBatch
from services.worker.model.span_attention import span_arrays, span_attention, spans_of
from shared.arrays import Int64

PUBLISHED = Path(__file__).parents[2] / "tests" / "golden" / "real_configs.json"
FEW = {"num_hidden_layers": 6, "vocab_size": 2048}  # the last layer attends to all text, the others to a window
TOY = {
    "hidden_size": 48, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "global_head_dim": 32, "sliding_window": 12, "num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 32,
}  # fmt: skip
ATTENTION = ("_varlen_attn", "_efficient_attention_forward", "scaled_dot_product")  # parts of operators' names
MAX_COMPILED_ERROR = 0.02  # of the largest hidden value; a compiled function rounds less often


def shape_of(setup: Setup) -> ModelConfig:
    """DiffusionGemma 26B-A4B with fewer layers and tokens, or a toy."""
    published = json.loads(PUBLISHED.read_text())["diffusiongemma-26b-a4b"]["config"]
    sizes = published["text_config"] | FEW | (TOY if setup.is_toy else {})
    canvas = 16 if setup.is_toy else published["canvas_length"]
    return replace(parse_config(published | {"text_config": sizes, "canvas_length": canvas}), max_length=8192)


def batch_of(config: ModelConfig, prompts: list[int]) -> tuple[ForwardBatch, int]:
    """A step that reads prompts of these lengths and denoises the first canvas of each, and the cache's entries."""
    canvas = config.block_length
    lengths = np.array([*prompts, *[canvas] * len(prompts)])
    first: Int64 = np.r_[np.zeros(len(prompts), dtype=np.int64), prompts]
    positions = np.concatenate([np.arange(start, start + n) for start, n in zip(first, lengths, strict=True)])
    starts: Int64 = np.tile(np.cumsum([0, *prompts])[:-1] + canvas * np.arange(len(prompts)), 2)
    batch = ForwardBatch(
        np.random.default_rng(0).integers(2, config.vocab_size, len(positions)),
        positions, lengths, starts, first + lengths, lengths[len(prompts) :], num_text_spans=len(prompts),
        write_entries=np.repeat(starts, lengths) + positions, rows=np.arange(sum(prompts), len(positions)),
        steps=np.zeros(len(prompts), dtype=np.int64),
    )  # fmt: skip
    return batch, len(positions)


@torch.inference_mode()
def attention(setup: Setup, found: Findings) -> None:
    """The kernel of each layer on a mixed batch, against fp32."""
    kernel = "fallback" if missing_feature("torch", setup) else "torch"
    config = shape_of(setup)
    batch, _ = batch_of(config, [30, 5, 9] if setup.is_toy else [1500, 37, 300])
    sent = [torch.from_numpy(array).to(setup.device) for array in span_arrays(batch, config)]
    spans = spans_of(batch, config, iter(sent))
    found.columns = ["window", "size of a head", "largest error, of the largest value"]
    no_entries, errors, operators = torch.zeros(0, device=setup.device), list[float](), OperatorNames()
    for layer in range(config.num_layers):
        shape = config.attention(layer)
        counts, size = (config.num_heads, 2 * shape.num_kv_heads), (len(batch.tokens), shape.head_dim)
        q, kv = (torch.randn(size[0], n, size[1], dtype=setup.half, device=setup.device) for n in counts)
        q /= shape.head_dim**0.5
        with operators:
            own = span_attention(spans, no_entries, None, config, kernel)(layer, q, kv)
        exact = span_attention(spans, no_entries, None, config, "fallback")(layer, q.float(), kv.float())
        errors.append(float((own.float() - exact).abs().max() / exact.abs().max()))
        found.row(shape.window or "all", shape.head_dim, f"{errors[-1]:.1e}")
    ran = sorted(name for name in operators.names if any(word in name for word in ATTENTION))
    found.notes.append(f"attention: {kernel}, by {', '.join(ran)}")
    found.checks[f"at most {MAX_ERROR:.0%} from fp32 in each layer"] = max(errors) <= MAX_ERROR
    found.checks[f"{kernel} is the kernel that ran"] = any("scaled_dot" in name for name in ran) == (
        kernel == "fallback"
    )


@torch.inference_mode()
def compiled(setup: Setup, found: Findings) -> None:
    """A step with the functions that torch's compiler makes on CUDA, compared with eager execution."""
    decoder = random_decoder(shape_of(setup), setup.device)
    assert isinstance(decoder, CanvasDecoder), "the family has this decoder"
    batch, entries = batch_of(decoder.config, [30, 5] if setup.is_toy else [700, 37])
    runner, frames = CanvasRunner(decoder, entries), torch._dynamo.utils.counters["frames"]
    frames.clear()
    hidden, _ = runner._read(batch)
    with torch.compiler.set_stance("force_eager"):
        plain, _ = runner._read(batch)
    error = float((hidden - plain).abs().max() / plain.abs().max())
    found.columns = ["functions", "of them compiled", "largest error, of the largest value"]
    found.row(frames["total"], frames["ok"], f"{error:.1e}")
    found.checks[f"within {MAX_COMPILED_ERROR:.0%}"] = error <= MAX_COMPILED_ERROR
    if setup.device.type == "cuda":
        found.checks["all are compiled"] = 0 < frames["ok"] == frames["total"]
    else:
        found.notes.append("Nothing is compiled on a CPU.")
