"""Workload statistics of a window of time, and the workload to plan for. Pure, for live and simulated requests."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from services.reconfigurator.planning.plan_input import Workload, WorkloadClass
from shared.messages.plans import ClassLoad
from shared.messages.requests import DEFAULT_BLOCK_LENGTH, ThresholdUse

PROMPT_EDGES = (128, 512, 2048)  # tokens: a bucket ends at each, the last is open
OUTPUT_EDGES = (64, 128, 256, 512, 1024)
MAX_CLASSES = 48  # with more, near SLOs share a class
SLO_SPREADS = (1.0, 1.25, 1.5, 2.0, 4.0)  # the highest SLO in a class over the lowest: the first that gives few classes
MIN_STEPS = 50  # observed steps at a threshold, below which their mean is not used


@dataclass(frozen=True, slots=True)
class RequestSample:
    prompt_tokens: int
    output_tokens: int  # requested
    slo_s: float
    unmasked_tokens: int | None = None  # fewer than requested if the text ended early; None: unfinished


@dataclass(frozen=True, slots=True)
class PlanningSettings:
    """The administrator's settings for planning."""

    thresholds: Sequence[float]
    tp_degrees: Sequence[int]
    batch_sizes: Sequence[int]  # tokens computed by one step
    rps_buffer: float = 0.1  # headroom over the observed rate (0.1 = 10 %)
    block_length: int = DEFAULT_BLOCK_LENGTH  # tokens
    exact_cache: bool = False  # as in Workload


def request_class(prompt_tokens: int, output_tokens: int) -> str:
    """The size of a request: `p128-o256` has at most 128 prompt and 256 output tokens, `p2049+` at least 2,049."""
    return f"p{_bucket(prompt_tokens, PROMPT_EDGES)}-o{_bucket(output_tokens, OUTPUT_EDGES)}"


def class_loads(requests: Iterable[RequestSample], window_s: float) -> list[ClassLoad]:
    """Statistics by class, in the order of sizes and SLOs. `requests` are all arrivals of `window_s` seconds.

    A class has one size and one SLO. If that gives more than MAX_CLASSES, near SLOs share a class, which has the lowest
    of them. Where a size has several classes, their names end in the SLO: `p128-o256-slo6.6`.
    Source: the paper's request classes, each with its own SLO.
    """
    sizes: defaultdict[str, list[RequestSample]] = defaultdict(list)
    for request in sorted(requests, key=lambda request: request.slo_s):
        sizes[request_class(request.prompt_tokens, request.output_tokens)].append(request)
    for spread in SLO_SPREADS:
        by_size = {size: _split_by_slo(members, spread) for size, members in sorted(sizes.items())}
        if sum(map(len, by_size.values())) <= MAX_CLASSES:
            break
    return [
        _load(size if len(classes) == 1 else f"{size}-slo{members[0].slo_s}".removesuffix(".0"), members, window_s)
        for size, classes in by_size.items()
        for members in classes
    ]


def tokens_per_step(
    uses: Iterable[ThresholdUse], thresholds: Sequence[float], prior: Mapping[float, float]
) -> dict[float, float]:
    """T_c of each threshold: the window's mean if it has MIN_STEPS; else that of `prior`, scaled by the ratio of means
    to priors at neighbouring thresholds; without a prior interpolated. Returns: nothing if nothing is known."""
    steps: defaultdict[float, int] = defaultdict(int)
    tokens: defaultdict[float, int] = defaultdict(int)
    for use in uses:
        nearest = min(thresholds, key=lambda c: abs(c - use.threshold))
        steps[nearest] += use.steps
        tokens[nearest] += use.tokens
    known = {c: tokens[c] / steps[c] for c in steps if steps[c] >= MIN_STEPS}
    if not all(c in prior for c in thresholds):
        prior = dict.fromkeys(thresholds, 1.0) if known else {}
    at = sorted(known)
    ratios = np.interp(thresholds, at, [known[c] / prior[c] for c in at]) if at else np.ones(len(thresholds))
    return {c: prior[c] * float(ratio) for c, ratio in zip(thresholds, ratios, strict=True) if c in prior}


def workload(
    loads: Sequence[ClassLoad], tokens: Mapping[float, float], planning: PlanningSettings, nodes: Sequence[int]
) -> Workload:
    """The workload to plan for; `nodes` are the GPUs of each.

    Output positions after the end of the text cost time at every step but need no step: they count with the prompt.
    With an exact cache no step feeds them.
    Raises: ValueError if there are no requests, thresholds, TP degrees or nodes.
    """
    block = planning.block_length
    return Workload(
        slo_s=max(load.slo_s for load in loads),
        thresholds=list(planning.thresholds),
        tp_degrees=list(planning.tp_degrees),
        batch_sizes=list(planning.batch_sizes),
        tokens_per_step={c: min(max(tokens[c], 1.0), float(block)) for c in planning.thresholds},
        block_length=block,
        exact_cache=planning.exact_cache,
        nodes=list(nodes),
        classes=[
            WorkloadClass(
                name=load.name,
                prompt_tokens=load.prompt_tokens
                + (0.0 if planning.exact_cache else load.output_tokens - load.unmasked_tokens),
                output_tokens=load.unmasked_tokens,
                rps=load.rps * (1 + planning.rps_buffer),
                slo_s=load.slo_s,
            )
            for load in loads
        ],
    )


def _split_by_slo(requests: Sequence[RequestSample], spread: float) -> list[list[RequestSample]]:
    """Groups of requests, given in the order of their SLOs: none has over `spread` times the lowest of its group."""
    groups: list[list[RequestSample]] = []
    for request in requests:
        if not groups or request.slo_s > spread * groups[-1][0].slo_s:
            groups.append([])
        groups[-1].append(request)
    return groups


def _load(name: str, requests: Sequence[RequestSample], window_s: float) -> ClassLoad:
    """The statistics of one class, whose requests are in the order of their SLOs."""
    output = float(np.mean([r.output_tokens for r in requests]))
    ended = [r for r in requests if r.unmasked_tokens]
    share = sum(r.unmasked_tokens or 0 for r in ended) / sum(r.output_tokens for r in ended) if ended else 1.0
    return ClassLoad(
        name=name,
        rps=len(requests) / window_s,
        prompt_tokens=float(np.mean([r.prompt_tokens for r in requests])),
        output_tokens=output,
        unmasked_tokens=output * min(share, 1.0),
        slo_s=requests[0].slo_s,
    )


def _bucket(tokens: int, edges: Sequence[int]) -> str:
    at = bisect_left(edges, tokens)
    return str(edges[at]) if at < len(edges) else f"{edges[-1] + 1}+"
