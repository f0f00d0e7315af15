"""The planner's input: a workload, a cluster and a latency profile, checked once and frozen.

The letters are the paper's (Table "Notation used in Stage 1 formulation"), so that the stages read like it.
"""

from codecs import BOM_UTF8
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from services.reconfigurator.planning.step_costs import StepMix, Steps, step_costs
from shared.arrays import Float64
from shared.errors import BadInput
from shared.messages.steps import StepKind
from shared.profile import LatencyProfile

Count = Annotated[int, msgspec.Meta(ge=1)]
Above0 = Annotated[float, msgspec.Meta(gt=0)]


class WorkloadClass(msgspec.Struct, frozen=True, kw_only=True):
    """One request class: requests of about one size."""

    name: str
    prompt_tokens: Annotated[float, msgspec.Meta(ge=0)]
    output_tokens: Above0
    rps: Annotated[float, msgspec.Meta(ge=0)]  # requests per second
    slo_s: Above0 | None = None  # None: the SLO of the workload


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """WORKLOAD.json."""

    slo_s: Above0
    thresholds: Annotated[list[Annotated[float, msgspec.Meta(gt=0, le=1)]], msgspec.Meta(min_length=1)]
    tp_degrees: Annotated[list[Count], msgspec.Meta(min_length=1)]
    batch_sizes: Annotated[list[Count], msgspec.Meta(min_length=1)]  # tokens computed by one step
    tokens_per_step: dict[float, Annotated[float, msgspec.Meta(ge=1)]]  # mean tokens unmasked, by threshold
    block_length: Count  # tokens
    exact_cache: bool = False  # finished blocks are cached for good: a request recomputes once, not once per block
    nodes: Annotated[list[Annotated[int, msgspec.Meta(ge=0)]], msgspec.Meta(min_length=1)]  # GPUs of each node
    classes: Annotated[list[WorkloadClass], msgspec.Meta(min_length=1)]

    def __post_init__(self) -> None:
        for name in ("thresholds", "tp_degrees", "batch_sizes"):
            _refuse_repeats(name, getattr(self, name))
        _refuse_repeats("names of classes", [k.name for k in self.classes])
        if unknown := [c for c in self.thresholds if c not in self.tokens_per_step]:
            raise ValueError(f"tokens_per_step lacks the thresholds {unknown}")
        if max(self.tokens_per_step[c] for c in self.thresholds) > self.block_length:
            raise ValueError(f"tokens_per_step must be at most block_length, {self.block_length}")
        if not any(k.rps > 0 for k in self.classes):
            raise ValueError("no class has an rps above 0")
        if max(self.nodes) < min(self.tp_degrees):
            raise ValueError(f"no node holds an instance: GPUs {self.nodes}, tp_degrees {self.tp_degrees}")


def read_workload(path: Path) -> Workload:
    """Raises: BadInput naming the file, the field at fault and the accepted values."""
    try:
        return msgspec.json.decode(path.read_bytes().removeprefix(BOM_UTF8), type=Workload)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadInput(f"cannot read the workload {path}: {error}", "workload") from None


@dataclass(frozen=True, slots=True)
class PlanInput:
    """The parameters of both stages; J, K, C, D, B index kinds of step, classes, thresholds, TP degrees, batch sizes.

    Units: SLO in seconds, RPS in requests per second, P, O, T and batches in tokens.
    """

    names: tuple[str, ...]  # [K] classes
    P: Float64  # [K] prompt length
    O: Float64  # [K] output length  # noqa: E741
    RPS: Float64  # [K]
    SLO: Float64  # [K]
    thresholds: Float64  # [C], ascending
    T: Float64  # [C] tokens unmasked per step
    degrees: tuple[int, ...]  # [D], ascending
    batches: Float64  # [B], ascending
    steps: Mapping[StepKind, Steps]  # recompute steps; with a cache also cache steps
    recomputes: Float64  # [K] recompute steps of a request; without a cache, all its steps
    nodes: tuple[int, ...]  # GPUs of each node

    @property
    def J(self) -> list[StepKind]:  # noqa: N802
        return list(self.steps)

    @property
    def K(self) -> range:  # noqa: N802
        return range(len(self.names))

    @property
    def C(self) -> range:  # noqa: N802
        return range(len(self.T))

    @property
    def D(self) -> range:  # noqa: N802
        return range(len(self.degrees))

    @property
    def B(self) -> range:  # noqa: N802
        return range(len(self.batches))

    @property
    def cached(self) -> bool:
        return StepKind.CACHE in self.steps

    def busy_s(self, j: StepKind, k: int, d: int, b: int) -> float:
        """Seconds of a TP-d instance that one step of class k uses at batch size b: its share of a full batch.

        Source: the paper's cost of recompute steps, alpha, and of cache steps, beta, times the tokens of the step.
        """
        return float(self.steps[j].tokens[k] * self.steps[j].busy[d, b] / self.batches[b])


def plan_input(workload: Workload, profile: LatencyProfile, *, cached: bool = True) -> PlanInput:
    """Raises: BadInput if the profile lacks a needed TP degree or kind of step."""
    classes = workload.classes
    prompt, output = (np.array([getattr(k, f) for k in classes], float) for f in ("prompt_tokens", "output_tokens"))
    batches = np.array(sorted(workload.batch_sizes), float)
    degrees = tuple(sorted(workload.tp_degrees))
    rps = np.array([k.rps for k in classes], float)
    thresholds = sorted(workload.thresholds)
    max_tokens_per_step = max(workload.tokens_per_step[c] for c in thresholds)
    mix = StepMix(prompt, output, rps, max_tokens_per_step, workload.block_length, workload.exact_cache)
    tokens_unmasked = np.array([workload.tokens_per_step[c] for c in thresholds])
    return PlanInput(
        names=tuple(k.name for k in classes),
        P=prompt,
        O=output,
        RPS=rps,
        SLO=np.array([k.slo_s or workload.slo_s for k in classes], float),
        thresholds=np.array(thresholds),
        T=tokens_unmasked,
        degrees=degrees,
        batches=batches,
        steps=step_costs(profile, degrees, batches, mix, cached=cached),
        recomputes=np.minimum(mix.recomputes, output / max_tokens_per_step),
        nodes=tuple(workload.nodes),
    )


def _refuse_repeats(name: str, values: Sequence[object]) -> None:
    if len(set(values)) < len(values):
        raise ValueError(f"{name} must differ from one another, got {values}")
