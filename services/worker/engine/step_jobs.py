"""StepJobs messages: detecting duplicates, and reading their rows."""

from collections import OrderedDict

import msgspec

from shared.arrays import unpack_float32, unpack_int32, unpack_int64
from shared.errors import BadInput
from shared.messages.steps import StepJobs

MAX_REMEMBERED = 8192  # messages: more than arrive within the 30 s after which the bus delivers one again


class StepJob(msgspec.Struct, frozen=True):
    """One row of a StepJobs message. Named by (ticket, step)."""

    ticket: int
    step: int
    block: int
    threshold: float
    kind: int
    batch: int = 0  # number of the iteration that runs it, or a later one; 0: any


class MessageDeduplicator:
    """Recognizes messages that are delivered again."""

    def __init__(self) -> None:
        self._names: OrderedDict[tuple[int, int], None] = OrderedDict()

    def add(self, message: StepJobs) -> bool:
        """Returns: whether the message is new; one without a number always is."""
        name = message.epoch, message.number
        is_new = not message.number or name not in self._names
        self._names[name] = None
        if len(self._names) > MAX_REMEMBERED:
            self._names.popitem(last=False)
        return is_new


def read_jobs(message: StepJobs) -> list[StepJob]:
    """The rows of the message. Raises: BadInput if its columns do not fit together."""
    try:
        columns: tuple[list[int] | list[float], ...] = (
            unpack_int64(message.tickets).tolist(),
            unpack_int32(message.steps).tolist(),
            unpack_int32(message.blocks).tolist(),
            unpack_float32(message.thresholds).tolist(),
            unpack_int32(message.kinds).tolist(),
        )
        if message.batches:
            columns = (*columns, unpack_int32(message.batches).tolist())
        unpack_int64(message.drops)
        return [StepJob(*row) for row in zip(*columns, strict=True)]
    except ValueError as error:
        raise BadInput(f"the columns of a StepJobs do not fit together: {error}") from None
