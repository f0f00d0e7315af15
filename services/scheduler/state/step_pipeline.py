"""The unanswered steps of each request at its instance: none, one, or with lookahead one and the step after it, its
successor.

The README's state diagram shows the states and transitions.
"""

import enum

import numpy as np
from numpy.typing import NDArray

from services.scheduler.state.columns import Columns
from shared.arrays import Bool, Float64, Int32, Int64
from shared.messages.steps import CACHE, RECOMPUTE


class StepState(enum.IntEnum):
    """Which steps of a request are at its instance."""

    IDLE = 0  # none: the next step may be sent, or the request sits out an iteration
    SENT = 1  # one step, the step in flight
    SENT_AHEAD = 2  # the step in flight and its successor, which the instance skips if the former ends the block
    # As SENT_AHEAD, and under the successor's step number also the first step of the next block: the instance runs the
    # successor if the block continues, the first step of the next block if it ends.
    SENT_ACROSS = 3


IDLE, SENT, SENT_AHEAD, SENT_ACROSS = map(int, StepState)  # members are slow to look up


class StepPipeline(Columns):
    """Owns the columns of the steps in flight, and makes every transition between their states."""

    state: NDArray[np.int8]  # StepState
    kind: Int32  # StepKind of the step in flight
    threshold: Float64  # confidence threshold of the step in flight, or of the last one
    next_threshold: Float64  # confidence threshold of the successor
    sent_s: Float64  # Unix time of the last send, seconds
    batch: Int64  # number of the instance's iteration that runs the step in flight

    def __init__(self, capacity: int, *, caching: bool, exact: bool = False) -> None:
        """`caching`: whether a step within a block uses the KV cache. `exact`: whether the first step of the next block
        does, too, as finished blocks are cached for good."""
        super().__init__(capacity)
        self.caching = caching
        self.exact = exact
        self.successor_kind = CACHE if caching else RECOMPUTE  # StepKind of a successor within the block
        self.next_block_kind = CACHE if exact else RECOMPUTE  # StepKind of a successor that begins a block

    def in_flight(self) -> Int64:
        """The rows with a step at an instance."""
        return (self.state >= SENT).nonzero()[0]

    def unanswered_since(self, time_s: float) -> Int64:
        """The rows in flight to which nothing was sent since `time_s`, Unix time in seconds."""
        return ((self.state >= SENT) & (self.sent_s < time_s)).nonzero()[0]

    def send(self, rows: Int64, thresholds: Float64, kinds: Int32, now_s: float, batches: Int64) -> None:
        """IDLE → SENT."""
        self.state[rows] = SENT
        self.batch[rows] = batches
        self.threshold[rows] = thresholds
        self.kind[rows] = kinds
        self.sent_s[rows] = now_s

    def send_ahead(self, rows: Int64, thresholds: Float64, across: Bool, now_s: float) -> None:
        """SENT → SENT_AHEAD, or SENT_ACROSS where the first step of the next block is sent, too (`across`)."""
        self.state[rows] = np.where(across, SENT_ACROSS, SENT_AHEAD)
        self.next_threshold[rows] = thresholds
        self.sent_s[rows] = now_s

    def complete(self, rows: Int64, block_ended: Bool) -> None:
        """A step's result arrived. Its successor, if the instance runs it, becomes the step in flight.

        SENT → IDLE. SENT_AHEAD → SENT, but IDLE where the block ended. SENT_ACROSS → SENT.
        """
        states = self.state[rows]
        has_successor = states > SENT
        if not np.count_nonzero(has_successor):
            self.state[rows] = IDLE
            return
        runs = (states == SENT_ACROSS) | ((states == SENT_AHEAD) & ~block_ended)
        self.state[rows] = np.where(runs, SENT, IDLE)
        kinds = np.where(block_ended, self.next_block_kind, self.successor_kind)
        self.kind[rows] = np.where(has_successor, kinds, self.kind[rows])
        self.threshold[rows] = np.where(has_successor, self.next_threshold[rows], self.threshold[rows])
        self.batch[rows] += 1  # a successor is of the next iteration

    def take_back(self, rows: Int64 | int) -> None:
        """Any state → IDLE: the steps are lost, or unanswered, or their instance lacks the request."""
        self.state[rows] = IDLE
