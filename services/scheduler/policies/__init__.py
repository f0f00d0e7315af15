"""How the core chooses instances and thresholds. A policy reads the table and the fleet, and writes only the
columns of the table that are its own."""

import enum
from typing import Protocol

from services.scheduler.fleet import Fleet
from services.scheduler.table import RequestTable
from shared.arrays import Float64, Int64


class Moves(enum.StrEnum):
    """When a request may leave an instance that serves it."""

    NEVER = "never"
    AT_RECOMPUTE = "recompute"  # when its next step rebuilds the KV cache anyway; without a cache, at any step
    AT_ANY_STEP = "any"  # with a cache, the cost is an additional recompute step


class Policy(Protocol):
    """What differs between serving systems; the rest of the core is common to all."""

    @property
    def moves(self) -> Moves: ...

    @property
    def uses_estimates(self) -> bool:
        """Whether the step predictor is to be asked."""
        ...

    def control(self, table: RequestTable, fleet: Fleet, now_s: float) -> None:
        """Once a cycle, before anything is placed."""
        ...

    def place(self, rows: Int64, table: RequestTable, fleet: Fleet) -> Int64:
        """The slot for the next step of each of `rows` (in the order of service), NOWHERE to defer.

        Shapes: rows [n] -> [n].
        """
        ...

    def thresholds(self, rows: Int64, table: RequestTable, fleet: Fleet, now_s: float) -> Float64:
        """The confidence threshold of the next step of each of `rows`. Shapes: rows [n] -> [n]."""
        ...
