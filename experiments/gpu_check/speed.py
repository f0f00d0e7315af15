"""Memory and speed with the shapes of LLaDA-8B and random weights."""

from dataclasses import replace

import torch

from experiments.gpu_check.findings import Findings, Setup
from experiments.gpu_check.kernels import best_kernel
from experiments.gpu_check.roofline import LLADA_8B, Ceilings, measure_ceilings, random_decoder, roofline_s
from services.worker.cache.kv_store import tokens_that_fit
from services.worker.model.decoder import PackedDecoder
from services.worker.model.families import ModelConfig
from services.worker.model.model_loading import forward_bytes, largest_batch
from services.worker.model.model_runner import Runner
from services.worker.profile.profiler import BLOCK, QUICK_PLAN, TYPICAL_TOKENS, ProfilePlan, measure
from shared.messages.steps import StepKind
from shared.profile import LatencyProfile

TOY = replace(
    LLADA_8B, num_layers=2, width=64, num_heads=4, num_kv_heads=4, head_dim=16, rotary_dim=16, mlp_width=128,
    vocab_size=512, mask_token_id=511, eos_token_id=510, max_length=256
)  # fmt: skip
NEEDED_BYTES = 32 << 30  # of a GPU, for all layers
BATCH_TOKENS, BATCH_REQUESTS = 8192, 64  # of the largest iteration, as in the worker's settings
REQUESTS = (1, 8, 32)


def shape(setup: Setup, found: Findings) -> ModelConfig:
    """LLaDA-8B, or eight of its layers on a small GPU, or a toy."""
    if setup.is_toy:
        return TOY
    if setup.device.type == "cuda" and torch.cuda.mem_get_info(setup.device)[0] >= NEEDED_BYTES:
        return LLADA_8B
    found.notes.append(f"less than {NEEDED_BYTES >> 30} GiB of free memory: 8 of 32 layers")
    return replace(LLADA_8B, num_layers=8)


def memory(setup: Setup, found: Findings) -> None:
    """The cache beside the largest iteration, which then runs again."""
    config = shape(setup, found)
    decoder, name = random_decoder(config, setup.device), best_kernel(setup)
    tokens, requests = (256, 8) if setup.is_toy else (BATCH_TOKENS, BATCH_REQUESTS)
    batch = largest_batch(config, tokens, requests)
    found.columns = ["quantity", "value"]
    needed = 0
    if setup.device.type == "cuda":
        needed = forward_bytes(Runner(decoder, 0, attention=name), batch, None)
    found.row("largest iteration, GB", f"{needed / 1e9:.2f}" if needed else "not measured on a CPU")
    fit = tokens_that_fit(decoder.kv_shape, needed)
    entries = min(fit, requests * config.max_length)
    found.row("cache that fits, tokens", fit)
    found.row("cache, tokens", entries)
    found.row("cache, GB", f"{entries * decoder.kv_shape.bytes_per_token / 1e9:.2f}")
    runner = Runner(decoder, entries, attention=name)
    try:
        runner.run(batch)
        found.checks["the largest iteration runs beside the cache"] = True
    except torch.OutOfMemoryError:
        found.checks["the largest iteration runs beside the cache"] = False
    if setup.device.type == "cuda":
        found.row("free at the end, GB", f"{torch.cuda.mem_get_info(setup.device)[0] / 1e9:.2f}")


def _measured(setup: Setup, decoder: PackedDecoder, plan: ProfilePlan, cache_tokens: int) -> LatencyProfile:
    return measure(Runner(decoder, cache_tokens, attention=best_kernel(setup)), 1, plan)


def profile(setup: Setup, found: Findings) -> None:
    """The quick latency profile that a worker measures at its first start."""
    decoder = random_decoder(shape(setup, found), setup.device)
    plan = replace(QUICK_PLAN, batch_tokens=(32, 64), long_tokens=(), mixed_tokens=()) if setup.is_toy else QUICK_PLAN
    room = max(plan.batch_tokens) // BLOCK * TYPICAL_TOKENS
    latencies = _measured(setup, decoder, plan, min(room, tokens_that_fit(decoder.kv_shape)))
    header, *lines = latencies.to_csv().splitlines()
    found.columns = header.split(",")
    for line in lines:
        found.row(*line.split(","))
    found.checks["every time is positive"] = all(
        float(row[found.columns.index("latency_ms")]) > 0 for row in found.rows
    )


def throughput(setup: Setup, found: Findings) -> None:
    """Tokens/s if each step unmasks one token, with the cache `dual`: of a block's 32 steps, one recomputes."""
    config = shape(setup, found)
    decoder = random_decoder(config, setup.device)
    ceilings = measure_ceilings(setup.device, 256, 1 << 20) if setup.is_toy else measure_ceilings(setup.device)
    found.notes.extend(
        (
            f"requests of {TYPICAL_TOKENS} tokens, one token for each step; measured ceilings: "
            f"{ceilings.flops_per_s / 1e12:.1f} TFLOP/s, {ceilings.bytes_per_s / 1e12:.2f} TB/s",
            f"attention: {best_kernel(setup)}",
        )
    )
    counts = REQUESTS[:2] if setup.is_toy else REQUESTS
    # The sizes in tokens of both kinds of step: the profile measures each size as either kind.
    sizes = tuple(sorted({count * tokens for count in counts for tokens in (BLOCK, TYPICAL_TOKENS)}))
    plan = ProfilePlan(sizes, repeats=2 if setup.is_toy else 5, budget_s=2.0)
    latencies = _measured(setup, decoder, plan, counts[-1] * TYPICAL_TOKENS)
    found.columns = [
        "requests",
        "recompute step, ms",
        "floor, ms",
        "cache step, ms",
        "floor, ms ",
        "tokens/s",
        "floor, tokens/s",
    ]
    for count in counts:
        times, floors = _block_times(latencies, config, count, ceilings)
        rates = [count * BLOCK / (each[0] + (BLOCK - 1) * each[1]) for each in (times, floors)]
        cells = (f"{x * 1e3:.2f}" for pair in zip(times, floors, strict=True) for x in pair)
        found.row(count, *cells, *(f"{rate:.0f}" for rate in rates))
        found.checks[f"{count} requests run"] = bool(rates[0] > 0)


def _block_times(
    latencies: LatencyProfile, config: ModelConfig, count: int, ceilings: Ceilings
) -> tuple[list[float], list[float]]:
    """The seconds of a recompute step and of a cache step, and their floors by the roofline."""
    tokens = {StepKind.RECOMPUTE: count * TYPICAL_TOKENS, StepKind.CACHE: count * BLOCK}
    times = [latencies.latency_s(1, fed, kind) for kind, fed in tokens.items()]
    return times, [roofline_s(config, fed, kind, ceilings) for kind, fed in tokens.items()]
