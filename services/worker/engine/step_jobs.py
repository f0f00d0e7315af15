"""StepJobs messages: whether one is new, its rows, and what it says to forget."""

from collections import OrderedDict
from collections.abc import Iterable

import msgspec

from shared.arrays import unpack_float32, unpack_int32, unpack_int64
from shared.errors import BadInput
from shared.messages.steps import StepJobs

MAX_REMEMBERED = 8192  # messages remembered: of half a minute, after which one that was not acknowledged comes again


class StepJob(msgspec.Struct, frozen=True):
    """One row of a StepJobs message. Named by (ticket, step)."""

    ticket: int
    step: int
    block: int
    threshold: float
    kind: int


class MessageDeduplicator:
    """Which messages have come, so that one that is delivered again is taken as nothing new."""

    def __init__(self) -> None:
        self._names: OrderedDict[tuple[int, int], None] = OrderedDict()

    def add(self, message: StepJobs) -> bool:
        """Whether it has not come before; one without a number is always new."""
        name = message.epoch, message.number
        is_new = not message.number or name not in self._names
        self._names[name] = None
        if len(self._names) > MAX_REMEMBERED:
            self._names.popitem(last=False)
        return is_new


def read_jobs(message: StepJobs) -> list[StepJob]:
    """Raises: BadInput if the columns do not fit together."""
    try:
        columns = (
            unpack_int64(message.tickets).tolist(),
            unpack_int32(message.steps).tolist(),
            unpack_int32(message.blocks).tolist(),
            unpack_float32(message.thresholds).tolist(),
            unpack_int32(message.kinds).tolist(),
        )
        unpack_int64(message.drops)
        return [StepJob(*row) for row in zip(*columns, strict=True)]
    except ValueError as error:
        raise BadInput(f"the columns of a StepJobs do not fit together: {error}") from None


def to_forget(message: StepJobs, held: Iterable[int]) -> list[int]:
    """Tickets that a message says to forget: those it names, and of those `held` what it says is too old."""
    named: list[int] = unpack_int64(message.drops).tolist()
    if not message.forget_below:
        return named
    kept = {state.ticket for state in message.states}
    return named + [ticket for ticket in held if ticket < message.forget_below and ticket not in kept]
