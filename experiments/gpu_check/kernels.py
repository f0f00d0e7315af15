"""Attention: each kernel that the machine has, against fp32 attention in every layer."""

import inspect
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from experiments.gpu_check.findings import Findings, Setup
from experiments.gpu_check.roofline import LLADA_8B, random_decoder
from services.worker.cache.kv_store import KvStore
from services.worker.engine.batch import Part, pack
from services.worker.engine.sequence_state import SequenceState
from services.worker.model.attention import Kernel, RequestSpans, kernel_name, kernel_of
from services.worker.model.decoder import PackedDecoder
from services.worker.model.families import ModelConfig
from tests.support.packed_forward import forward_packed

KERNELS = ("torch", "flash-attn", "fallback")
OPERATOR = {"torch": "_varlen_attn", "flash-attn": "flash_attn::", "fallback": "scaled_dot_product"}  # part of its name
MAX_ERROR = 0.01  # of the largest fp32 value of a layer; bfloat16 has 8 bits
VARLEN_ARGUMENTS = {"enable_gqa", "seqused_k", "num_splits"}  # that the worker passes
BLOCK = 32


def missing_feature(name: str, setup: Setup) -> str:
    """Why this kernel cannot run here; empty if it can."""
    try:
        kernel_name(name, setup.device, setup.half)
    except ValueError as error:
        return str(error)
    if name == "torch":
        try:
            from torch.nn.attention.varlen import varlen_attn  # noqa: PLC0415 - of torch from 2.10 on
        except ImportError:
            return f"torch {torch.__version__} has no varlen_attn"
        lacking = VARLEN_ARGUMENTS - inspect.signature(varlen_attn).parameters.keys()
        if lacking:
            return f"varlen_attn of torch {torch.__version__} lacks {', '.join(sorted(lacking))}"
    return ""


def best_kernel(setup: Setup) -> str:
    """The first kernel that can run here."""
    return next(name for name in KERNELS if not missing_feature(name, setup))


class OperatorNames(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Collects the names of the operators that torch dispatches."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.name())
        return func(*args, **(kwargs or {}))


def exact(q: Tensor, k: Tensor, v: Tensor, spans: RequestSpans) -> Tensor:
    """Attention in fp32, request by request."""
    mixed, rows = [], pairwise(spans.cu_seq_q.tolist())
    for (first, end), start, length in zip(rows, spans.cu_seq_k.tolist(), spans.seqused_k.tolist(), strict=False):
        keys, values = (
            x[start : start + length].float().repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v)
        )
        scores = torch.einsum("qhd,khd->hqk", q[first:end].float(), keys) * q.shape[-1] ** -0.5
        mixed.append(torch.einsum("hqk,khd->qhd", scores.softmax(dim=-1), values))
    return torch.cat(mixed)


def compared(kernel: Kernel, errors: list[float]) -> Kernel:
    """The kernel, which adds the largest error of each call to `errors`, as a share of the largest fp32 value."""

    def run(q: Tensor, k: Tensor, v: Tensor, spans: RequestSpans) -> Tensor:
        mixed, wanted = kernel(q, k, v, spans), exact(q, k, v, spans)
        errors.append(float((mixed.float() - wanted).abs().max() / wanted.abs().max()))
        return mixed

    return run


def shape_of(setup: Setup, kv_heads: int, heads: int) -> ModelConfig:
    """LLaDA-8B with four layers and few tokens, or a toy."""
    config = replace(LLADA_8B, num_layers=4, vocab_size=2048, mask_token_id=2047, eos_token_id=2046, max_length=1024)
    width, head = (heads * 16, 16) if setup.is_toy else (heads * 128, 128)
    return replace(
        config, width=width, num_heads=heads, num_kv_heads=kv_heads, head_dim=head, rotary_dim=head, mlp_width=2 * width
    )


def mixed_parts(config: ModelConfig, prompts: list[int]) -> tuple[list[Part], list[Part], int]:
    """Requests of these prompts: their recompute steps; a mixed batch of a recompute step and cache steps; the cache's
    entries."""
    resident, start = [], 0
    for ticket, prompt in enumerate(prompts):
        tokens = np.random.default_rng(ticket).integers(0, config.mask_token_id, prompt)
        canvas = np.r_[tokens, [config.mask_token_id] * BLOCK].astype(np.int32)
        known = np.full(BLOCK, np.nan, dtype=np.float32)
        resident.append(SequenceState(ticket, prompt, BLOCK, canvas, known, kv_start=start))
        start += len(canvas)
    whole = [Part(s, 0, 0, 0, len(s.canvas)) for s in resident]
    mixed = [whole[0], *(Part(s, 1, 0, *s.block_range(0)) for s in resident[1:])]
    return sorted(whole, key=lambda p: p.sort_key), sorted(mixed, key=lambda p: p.sort_key), start


def layer_errors(decoder: PackedDecoder, name: str, prompts: list[int]) -> tuple[list[float], set[str]]:
    """The error in each layer of a batch of recompute steps and then of a mixed batch, and the operators that ran."""
    whole, mixed, entries = mixed_parts(decoder.config, prompts)
    store, errors, operators = KvStore(decoder.kv_shape, entries), list[float](), OperatorNames()
    kernel = compared(kernel_of(name), errors)
    forward_packed(decoder, pack(whole, decoder.config), store, kernel)
    forward_packed(decoder, pack(mixed, decoder.config), store, kernel)
    with operators:
        forward_packed(decoder, pack(mixed, decoder.config), store, kernel_of(name))
    return errors, operators.names


def check_kernels(setup: Setup, found: Findings, heads: int, kv_heads: int) -> None:
    """Every kernel with these heads."""
    found.columns = ["kernel", "largest error by layer, of recompute steps, then of a mixed batch", "operator that ran"]
    decoder = random_decoder(shape_of(setup, kv_heads, heads), setup.device)
    prompts = [5, 9, 30] if setup.is_toy else [500, 37, 640, 211, 37, 8]
    for name in KERNELS:
        if reason := missing_feature(name, setup):
            found.row(name, "", reason)
            continue
        errors, operators = layer_errors(decoder, name, prompts)
        ran = sorted(operator for operator in operators if any(word in operator for word in OPERATOR.values()))
        found.row(name, " ".join(f"{error:.1e}" for error in errors), ", ".join(ran) or "none")
        found.checks[f"{name}: at most {MAX_ERROR:.0%} from fp32 in each layer"] = max(errors) <= MAX_ERROR
        found.checks[f"{name} is the kernel that ran"] = bool(ran) and all(OPERATOR[name] in each for each in ran)


def attention(setup: Setup, found: Findings) -> None:
    """As many key/value heads as query heads, as in LLaDA."""
    check_kernels(setup, found, 8, 8) if setup.is_toy else check_kernels(setup, found, 32, 32)


def grouped_queries(setup: Setup, found: Findings) -> None:
    """Seven query heads for each key/value head, as in Dream."""
    check_kernels(setup, found, 14, 2) if setup.is_toy else check_kernels(setup, found, 28, 4)
