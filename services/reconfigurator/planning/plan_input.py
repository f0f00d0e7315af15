"""The planner's input: a workload, a cluster and a latency profile, checked once and frozen.

The letters are the paper's (Table "Notation used in Stage 1 formulation"), so that the stages read like it.
"""

from codecs import BOM_UTF8
from collections.abc import Sequence
from copy import copy
from pathlib import Path
from typing import Annotated, Self

import msgspec
import numpy as np

from services.reconfigurator.planning.step_costs import StepMix, step_costs
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


class PlanInput:
    """The parameters of both stages; J, K, C, D, B index kinds of step, classes, thresholds, TP degrees, batch sizes.

    Units: SLO in seconds, RPS in requests per second, P, O, T and batches in tokens.
    """

    def __init__(self, workload: Workload, profile: LatencyProfile, *, cached: bool = True) -> None:
        """Raises: BadInput if the profile lacks a needed TP degree or kind of step."""
        classes, thresholds = workload.classes, sorted(workload.thresholds)
        self.names = tuple(k.name for k in classes)  # [K]
        self.P: Float64 = np.array([k.prompt_tokens for k in classes], float)  # [K] prompt length
        self.O: Float64 = np.array([k.output_tokens for k in classes], float)  # [K] output length
        self.RPS: Float64 = np.array([k.rps for k in classes], float)  # [K]
        self.SLO: Float64 = np.array([k.slo_s or workload.slo_s for k in classes], float)  # [K]
        self.thresholds: Float64 = np.array(thresholds)  # [C], ascending
        self.T: Float64 = np.array([workload.tokens_per_step[c] for c in thresholds])  # [C] tokens unmasked per step
        self.degrees = tuple(sorted(workload.tp_degrees))  # [D], ascending
        self.batches: Float64 = np.array(sorted(workload.batch_sizes), float)  # [B], ascending
        self.nodes = tuple(workload.nodes)  # GPUs of each node
        most = float(self.T.max())
        mix = StepMix(self.P, self.O, self.RPS, most, workload.block_length, workload.exact_cache)
        self.cached = cached
        # Recompute steps; with a cache also cache steps
        self.steps = step_costs(profile, self.degrees, self.batches, mix, cached=cached)
        # [K] recompute steps of a request; without a cache, all its steps
        self.recomputes: Float64 = np.minimum(mix.recomputes, self.O / most)
        self.J, self.K, self.C = list(self.steps), range(len(classes)), range(len(thresholds))
        self.D, self.B = range(len(self.degrees)), range(len(self.batches))

    def resized(self, nodes: Sequence[int]) -> Self:
        """The same workload on nodes of these GPUs."""
        other = copy(self)
        other.nodes = tuple(nodes)
        return other

    def at_rates(self, rps: Float64) -> Self:
        """The same classes at other rates, [K], in the same proportion, so that steps cost as before."""
        other = copy(self)
        other.RPS = rps
        return other

    def busy_s(self, j: StepKind, k: int, d: int, b: int) -> float:
        """Seconds of a TP-d instance that one step of class k uses at batch size b: its share of a full batch.

        Source: the paper's cost of recompute steps, alpha, and of cache steps, beta, times the tokens of the step.
        """
        return float(self.steps[j].tokens[k] * self.steps[j].busy[d, b] / self.batches[b])


def _refuse_repeats(name: str, values: Sequence[object]) -> None:
    if len(set(values)) < len(values):
        raise ValueError(f"{name} must differ from one another, got {values}")
