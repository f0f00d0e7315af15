"""A valid message of every type, from which damaged ones are made: those stored for the tests, with more fields."""

from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from shared.arrays import pack_float32, pack_int32
from shared.bus.codec import decode
from shared.messages import (
    cell,
    checkpoints,
    decisions,
    gateway,
    health,
    instances,
    launch,
    models,
    plans,
    predict,
    requests,
    stats,
    steps,
)
from shared.messages.decisions import StepDecisions
from shared.messages.instances import Instance
from shared.messages.requests import Outcome, Progress, Request, ThresholdUse, TopTokens
from shared.messages.stats import SchedulerStats
from shared.messages.steps import StepJobs, StepResults, StepTopTokens

STORED = Path(__file__).parents[2] / "tests" / "contract" / "samples"
MODULES = (
    *(cell, checkpoints, decisions, gateway, health, instances, launch, models),
    *(plans, predict, requests, stats, steps),
)
TOP_TOKENS = TopTokens(positions=pack_int32([0]), tokens=pack_int32([9, 4]), confidences=pack_float32([0.9, 0.05]))


def _samples() -> dict[type[Any], Any]:
    kinds = {name: kind for module in MODULES for name, kind in vars(module).items()}
    found = {kinds[path.stem]: decode(path.read_bytes(), kinds[path.stem]) for path in sorted(STORED.glob("*.msgpack"))}
    outcome, jobs = found[Outcome], found[StepJobs]
    served = replace(
        outcome.stats, thresholds=[ThresholdUse(threshold=0.9, steps=9, tokens=32)], step_s=0.1, predicted_steps=8.5
    )
    [state] = jobs.states
    ticket, top = state.ticket, msgspec.structs.asdict(TOP_TOKENS)
    added: dict[type[Any], dict[str, Any]] = {
        Request: {"prompt_ids": pack_int32([5, 6]), "age_s": 0.5},
        Outcome: {"stats": served, "decisions": found[StepDecisions], "top_tokens": TOP_TOKENS},
        Progress: {"top_tokens": TOP_TOKENS},
        StepJobs: {
            "number": 1,
            "batches": pack_int32([1]),
            "states": [replace(state, temperature=0.5, seed=3, guesses=True, end_ids=pack_int32([1]))],
        },
        StepResults: {"top_tokens": [StepTopTokens(ticket=ticket, **top)]},
        Instance: {"cache_tokens": 512},
        SchedulerStats: {"shed": True, "mean_threshold": 0.8, "latency_p99_s": 0.9},
    }
    return {kind: replace(sample, **added.get(kind, {})) for kind, sample in found.items()}


SAMPLES = _samples()
VOCAB, MASK_ID = SAMPLES[Instance].model.vocab_size, SAMPLES[Instance].model.mask_token_id


def plain(value: Any) -> Any:
    """The content of a message as builtin types, with every field, also those with their default."""
    match value:
        case msgspec.Struct():
            return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
        case dict():
            return {key: plain(part) for key, part in value.items()}
        case list() | tuple():
            return [plain(part) for part in value]
        case _:
            return value
