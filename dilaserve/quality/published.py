"""Published figures of known models, to compare one's own with. Without a KV cache, one request at a time."""

import msgspec

FAST_DLLM = "Fast-dLLM (arXiv 2505.22618), GSM8K 5-shot, 256 tokens, blocks of 32"
DEMO = "models/demo/README.md, the held-out problems, 64 tokens, blocks of 32"


class PublishedFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Of one model at one threshold; None: not published. Speeds depend on the device, which `speed_on` names."""

    source: str
    tokens_per_step: float
    accuracy: float | None = None  # 0 to 1
    tokens_per_s: float | None = None
    speed_on: str = ""


_LLADA = {0.5: (7.01, 0.6657), 0.6: (6.17, 0.7240), 0.7: (5.12, 0.7635), 0.8: (4.24, 0.7771), 0.9: (3.25, 0.7915)}
_DEMO = {0.5: (6.3, 0.663), 0.6: (7.6, 0.778), 0.7: (9.2, 0.875), 0.8: (11.1, 0.905), 0.9: (14.1, 0.937)}  # steps of 64
_SPEED_ON = "one A100, one request at a time"

PUBLISHED: dict[tuple[str, str], dict[float, PublishedFigures]] = {  # by model name and benchmark
    ("LLaDA-8B-Instruct", "gsm8k"): {
        threshold: PublishedFigures(
            source=FAST_DLLM,
            tokens_per_step=tokens,
            accuracy=accuracy,
            tokens_per_s=16.5 if threshold == 0.9 else None,
            speed_on=_SPEED_ON if threshold == 0.9 else "",
        )
        for threshold, (tokens, accuracy) in _LLADA.items()
    },
    ("Dream-v0-Base-7B", "gsm8k"): {
        0.9: PublishedFigures(
            source=f"{FAST_DLLM}; tokens per step by d3LLM (arXiv 2601.07568)",
            tokens_per_step=1.79,
            tokens_per_s=14.2,
            speed_on=_SPEED_ON,
        )
    },
    ("demo", "rows"): {
        threshold: PublishedFigures(source=DEMO, tokens_per_step=64 / steps, accuracy=accuracy)
        for threshold, (steps, accuracy) in _DEMO.items()
    },
}


def published(model: str, benchmark: str, threshold: float) -> PublishedFigures | None:
    """None if nothing is known for this model and threshold."""
    return PUBLISHED.get((model, benchmark), {}).get(threshold)
