"""A model of denoising steps on H100s, which gives the latency profiles of LLaDA-8B and Dream-7B.

python -m experiments.latency_model

Nothing is measured: each constant is from a published measurement, or fitted to one, or assumed, as the comment beside
it states. The model reproduces `experiments/data/h100-llada8b.csv`; the command prints the largest difference. Dream-7B
has the same constants; only its dimensions differ. So its fixed costs and its gain from tensor parallelism are assumed.
"""

from dataclasses import dataclass
from itertools import product
from math import hypot

from experiments.paper.files import DREAM_PROFILE, PROFILE
from shared.messages.steps import StepKind
from shared.profile import LatencyProfile, MeasuredLatency, read_profile

GRID = (32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1276, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384)
TP_DEGREES = (1, 2, 4)
BLOCK = 32
CACHED_CONTEXT = 512  # keys that a cache step attends to
MAX_CONTEXT = 1276  # of a recompute step: GSM8K's prompt and output
TYPICAL_TOKENS = 404  # ShareGPT's mean prompt and output
BYTES = 2  # bfloat16
# Vidur's H100 kernel table of Llama-2-7B
FLOPS_PER_S, BYTES_PER_S, ATTENTION_FLOPS_PER_S = 740e12, 2.6e12, 400e12
ELEMENTWISE_MS, WHOLE_MS_PER_TOKEN, SPLIT_MS_PER_TOKEN = 0.75, 0.0015, 0.0014
# All-reduce in microseconds: fixed, and per MB; a custom kernel (SGLang pull request 2904) and NCCL (Vidur): the least,
# fixed, and per MB
CUSTOM_REDUCE = {2: (4.0, 7.8), 4: (5.0, 13.0)}
NCCL_REDUCE = {2: (40.0, 10.0, 3.65), 4: (42.0, 18.0, 4.6)}
LAUNCH_MS = 17.0  # fitted to Fast-dLLM's published steps on an H100, 24 to 38 ms
SEQUENCE_MS = 6.0  # fitted to the loaded latencies of the DiLaServe paper; published bounds are 1 and 14.6
STEP_SHARE = {2: 0.75, 4: 0.45}  # of TP-1's step of MAX_CONTEXT tokens: the DiLaServe paper's figures


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimensions:
    """A transformer, from its published configuration."""

    layers: int
    width: int
    mlp_width: int
    kv_width: int  # of all key heads
    vocabulary: int

    @property
    def parameters(self) -> int:
        """Those that a step multiplies by: all but the input embedding and the norms."""
        attention = 2 * self.width * (self.width + self.kv_width)
        return self.layers * (attention + 3 * self.width * self.mlp_width) + self.width * self.vocabulary

    @property
    def kv_bytes_per_token(self) -> int:
        return 2 * self.layers * self.kv_width * BYTES


LLADA_8B = Dimensions(layers=32, width=4096, mlp_width=12288, kv_width=4096, vocabulary=126464)
DREAM_7B = Dimensions(layers=28, width=3584, mlp_width=18944, kv_width=512, vocabulary=152064)


def device_ms(model: Dimensions, tp: int, tokens: int, kind: StepKind) -> float:
    """The time of the kernels. Units: milliseconds."""
    cached = kind is StepKind.CACHE
    compute_s = 2 * model.parameters * tokens / (tp * FLOPS_PER_S)
    kv_bytes = tokens / BLOCK * CACHED_CONTEXT * model.kv_bytes_per_token / tp if cached else 0.0
    memory_s = (BYTES * model.parameters / tp + kv_bytes) / BYTES_PER_S
    context = CACHED_CONTEXT if cached else min(tokens, MAX_CONTEXT)
    attention_s = 4 * tokens * context * model.width * model.layers / (tp * ATTENTION_FLOPS_PER_S)
    kernels_ms = 1000 * (hypot(compute_s, memory_s) + attention_s)  # hypot is a soft maximum
    return kernels_ms + _elementwise_ms(model, tp, tokens) + _all_reduce_ms(model, tp, tokens)


def _elementwise_ms(model: Dimensions, tp: int, tokens: int) -> float:
    """Constants are those of LLaDA-8B's dimensions; another model's time is in proportion to its layers and widths."""
    layers = model.layers / LLADA_8B.layers
    whole = WHOLE_MS_PER_TOKEN * model.width / LLADA_8B.width
    split = SPLIT_MS_PER_TOKEN * model.mlp_width / LLADA_8B.mlp_width
    return layers * (ELEMENTWISE_MS + tokens * (whole + split / tp))


def _all_reduce_ms(model: Dimensions, tp: int, tokens: int) -> float:
    if tp == 1:
        return 0.0
    megabytes = tokens * model.width * BYTES / 1e6
    fixed_us, us_per_mb = CUSTOM_REDUCE[tp]
    least_us, nccl_us, nccl_us_per_mb = NCCL_REDUCE[tp]
    each_us = min(fixed_us + us_per_mb * megabytes, max(least_us, nccl_us + nccl_us_per_mb * megabytes))
    return 2 * model.layers * each_us / 1000  # after attention and after the MLP


def step_ms(model: Dimensions, tp: int, tokens: int, kind: StepKind) -> float:
    """The time of a step with its costs on the host, which are assumed to shrink with TP as the kernels do.

    Units: milliseconds.
    """
    device = device_ms(model, 1, tokens, kind)
    sequences = tokens / BLOCK if kind is StepKind.CACHE else max(1.0, tokens / TYPICAL_TOKENS)
    single = device + LAUNCH_MS + SEQUENCE_MS * sequences
    return single if tp == 1 else single * _tp_penalty(tp) * device_ms(model, tp, tokens, kind) / device


def _tp_penalty(tp: int) -> float:
    """The factor at which LLaDA's step has the published share."""
    single, split = (device_ms(LLADA_8B, degree, MAX_CONTEXT, StepKind.RECOMPUTE) for degree in (1, tp))
    return STEP_SHARE[tp] * single / split


def profile(model: Dimensions) -> LatencyProfile:
    return LatencyProfile(
        MeasuredLatency(tp, tokens, kind, step_ms(model, tp, tokens, kind) / 1000)
        for tp, kind, tokens in product(TP_DEGREES, StepKind, GRID)
    )


def largest_difference(model: LatencyProfile, stored: LatencyProfile) -> float:
    """Of the same rows, as a share."""
    return max(abs(a.latency_s / b.latency_s - 1) for a, b in zip(model.rows, stored.rows, strict=True))


def main() -> None:
    """Print the difference of the model from LLaDA's stored profile, and write Dream's."""
    difference = largest_difference(profile(LLADA_8B), read_profile(PROFILE))
    print(f"LLaDA-8B: at most {difference:.2%} from {PROFILE.name}")
    DREAM_PROFILE.write_text(profile(DREAM_7B).to_csv(), encoding="utf-8")
    full, block = (step_ms(DREAM_7B, 1, n, k) for n, k in ((1276, StepKind.RECOMPUTE), (32, StepKind.CACHE)))
    print(f"Dream-7B: {full:.1f} ms for a recompute step of 1276 tokens, {block:.1f} ms for a cache step; written")


if __name__ == "__main__":
    main()
