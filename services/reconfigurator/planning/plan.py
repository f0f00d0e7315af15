"""What planning results in: PLAN.json and its parts."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

import msgspec

from shared.errors import BadInput


class Solver(StrEnum):
    CBC = "cbc"
    HIGHS = "highs"


class PlanStatus(StrEnum):
    OPTIMAL = "optimal"
    FEASIBLE = "feasible"  # the best found in the time given
    FALLBACK = "fallback"  # no plan meets every SLO, or none was found in time: the smallest TP degree everywhere


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """Where an instance stands: GPUs of one node, by their numbers on it."""

    node: int
    gpus: list[int]
    tp: int

    def __post_init__(self) -> None:
        if self.tp < 1 or not len(self.gpus) == len(set(self.gpus)) == self.tp:
            raise ValueError(f"an instance of tp {self.tp} needs as many different GPUs, got {self.gpus}")


class PlannedInstance(Placement, frozen=True, kw_only=True):
    """One of the instances that are to run."""

    preserved: bool  # it runs already, on these very GPUs


class PlanStep(msgspec.Struct, frozen=True, kw_only=True):
    """Stop these, by their index in the current instances; then start this one and wait until it serves."""

    stop: list[int]
    start: Placement | None = None  # None: nothing is left to start


class PlannedClass(msgspec.Struct, frozen=True, kw_only=True):
    """How Stage 1 serves a request of one class. Its steps are means, of both kinds together."""

    name: str
    latency_s: float
    steps_by_threshold: dict[str, float]
    steps_by_tp: dict[str, float]


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """What Stage 1 decides. Gaps are relative, to the best that may still be possible; None where not known."""

    status: PlanStatus
    reason: str = ""  # of a fallback
    mean_threshold: float  # the primary objective divided by the sum of RPS_k
    mean_threshold_gap: float | None = None
    slack_s: float  # the secondary objective: the sum over classes of RPS_k (SLO_k - t_k)
    slack_gap: float | None = None
    instances_per_tp: dict[int, int]
    busy_per_tp: dict[int, float]  # of these, how many the workload keeps busy on average
    sustains: float  # how many times the workload they could serve, at the lowest threshold and the best batch sizes
    classes: list[PlannedClass]


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """Whether to leave the current instances for the planned ones."""

    take: bool
    reason: str


class Plan(Capacity, frozen=True, kw_only=True):
    """PLAN.json: what both stages decide. `status` is optimal only if both are."""

    instances: list[PlannedInstance]
    preserved: int
    preserved_gap: float | None = None
    steps: list[PlanStep]
    decision: Decision
    solve_s: float


class CurrentPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What is read of a PLAN.json that is in force."""

    instances: list[Placement]


def read_current(path: Path) -> list[Placement]:
    """The instances of a PLAN.json. Raises: BadInput naming the file and the field at fault."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=CurrentPlan).instances
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadInput(f"cannot read the current plan {path}: {error}", "current") from None


def check_placements(placements: Sequence[Placement], nodes: Sequence[int]) -> None:
    """Raises: BadInput if an instance stands on GPUs that the nodes do not have, or that another one stands on."""
    taken: dict[tuple[int, int], int] = {}
    for i, placement in enumerate(placements):
        for gpu in placement.gpus:
            if not (0 <= placement.node < len(nodes) and 0 <= gpu < nodes[placement.node]):
                raise BadInput(f"instance {i} is on GPU {gpu} of node {placement.node}; the nodes have {list(nodes)}")
            other = taken.setdefault((placement.node, gpu), i)
            if other != i:
                raise BadInput(f"instances {other} and {i} are both on GPU {gpu} of node {placement.node}")
