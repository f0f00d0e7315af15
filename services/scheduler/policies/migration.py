"""Which running requests may migrate to another instance; `algorithms/placement.py` chooses the instance."""

import enum

import numpy as np

from shared.arrays import Bool


class MigrationPolicy(enum.StrEnum):
    """When a request may move to another instance."""

    NEVER = "never"
    FOR_ROOM = "room"  # at the steps of AT_RECOMPUTE, but only to make room for a request that waits
    AT_RECOMPUTE = "recompute"  # when its next step rebuilds the KV cache anyway; without a cache, at any step
    AT_ANY_STEP = "any"  # with a cache, the cost is an additional recompute step

    @property
    def balances(self) -> bool:
        """Whether requests also move when none waits."""
        return self in {MigrationPolicy.AT_RECOMPUTE, MigrationPolicy.AT_ANY_STEP}

    def may_move(self, recomputes: Bool, *, exact: bool) -> Bool:
        """Whether each request may move for its next step. With an `exact` cache a move costs a prefill: it makes room
        for another request, but does not balance the load. Shapes: `recomputes`, whether that is a recompute step on
        every instance, [n] -> [n]."""
        if self is MigrationPolicy.NEVER or (self.balances and exact):
            return np.zeros(len(recomputes), dtype=np.bool_)
        return np.ones(len(recomputes), dtype=np.bool_) if self is MigrationPolicy.AT_ANY_STEP else recomputes
