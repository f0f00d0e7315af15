"""The result of planning: PLAN.json and its parts."""

from codecs import BOM_UTF8
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

import msgspec

from shared.errors import BadInput


class PlanStatus(StrEnum):
    OPTIMAL = "optimal"
    FEASIBLE = "feasible"  # the best found in the time given
    FALLBACK = "fallback"  # the smallest TP degree everywhere: no plan meets every SLO, or none was found in time


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """The GPUs of an instance, by their numbers on one node."""

    node: int
    gpus: list[int]
    tp: int

    def __post_init__(self) -> None:
        if self.tp < 1 or not len(self.gpus) == len(set(self.gpus)) == self.tp:
            raise ValueError(f"an instance of tp {self.tp} needs as many different GPUs, got {self.gpus}")


class PlannedInstance(Placement, frozen=True, kw_only=True):
    preserved: bool  # it already runs on these GPUs


class PlanStep(msgspec.Struct, frozen=True, kw_only=True):
    """Stop instances, then start one and wait until it serves."""

    stop: list[int]  # indices of current instances
    start: Placement | None = None


class PlannedClass(msgspec.Struct, frozen=True, kw_only=True):
    """How Stage 1 serves a request of one class: its mean steps, both kinds together."""

    name: str
    latency_s: float
    steps_by_threshold: dict[str, float]
    steps_by_tp: dict[str, float]


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """The result of Stage 1. Gaps are relative, to the best bound on the objective; None if unknown."""

    status: PlanStatus
    reason: str = ""  # for a fallback
    mean_threshold: float  # the primary objective divided by the sum of RPS_k
    mean_threshold_gap: float | None = None
    slack_s: float  # the secondary objective: the sum over classes of RPS_k (SLO_k - t_k)
    slack_gap: float | None = None
    instances_per_tp: dict[int, int]
    busy_per_tp: dict[int, float]  # how many of them the workload keeps busy on average
    sustains: float  # room: how many times the workload they can serve at the lowest threshold and the best batch sizes
    classes: list[PlannedClass]


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """Whether to replace the current instances by the planned ones."""

    take: bool
    reason: str


class Plan(Capacity, frozen=True, kw_only=True):
    """PLAN.json: the result of both stages. `status` is optimal only if both stages are."""

    instances: list[PlannedInstance]
    preserved: int
    preserved_gap: float | None = None
    steps: list[PlanStep]
    decision: Decision
    solve_s: float  # of everything
    stage1_s: float = 0.0  # of Stage 1
    stage2_s: float = 0.0  # of Stage 2


class CurrentPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a PLAN.json that the planner reads when it plans a change of that plan."""

    instances: list[Placement]


def read_current(path: Path) -> list[Placement]:
    """The instances of a PLAN.json. Raises: BadInput naming the file and the field at fault."""
    try:
        return msgspec.json.decode(path.read_bytes().removeprefix(BOM_UTF8), type=CurrentPlan).instances
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadInput(f"cannot read the current plan {path}: {error}", "current") from None


def check_placements(placements: Sequence[Placement], nodes: Sequence[int]) -> None:
    """Raises: BadInput if an instance is on GPUs that the nodes lack or that another instance is on."""
    taken: dict[tuple[int, int], int] = {}
    for i, placement in enumerate(placements):
        for gpu in placement.gpus:
            if not (0 <= placement.node < len(nodes) and 0 <= gpu < nodes[placement.node]):
                raise BadInput(f"instance {i} is on GPU {gpu} of node {placement.node}; the nodes have {list(nodes)}")
            other = taken.setdefault((placement.node, gpu), i)
            if other != i:
                raise BadInput(f"instances {other} and {i} are both on GPU {gpu} of node {placement.node}")
