"""The work that the automata of one form may take, counted while it is done.

A few characters such as (a|b)*a(a|b){30} describe billions of states.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from shared.errors import BadInput


class TooLarge(BadInput):
    """A limit of the whole form, whichever part exceeds it."""


class Unfinished(TooLarge):
    """The form needs more than the effort that is left."""


@dataclass(slots=True)
class Effort:
    """`steps`: those that are left, each of some microseconds; `seconds`: of CPU time, of a pattern that another
    program compiles."""

    steps: int
    seconds: int


LITTLE = Effort(40_000, 1)  # about a third of a second
MOST = Effort(600_000, 5)  # about five seconds
_current: ContextVar[Effort | None] = ContextVar("effort", default=None)


@contextmanager
def limited(effort: Effort) -> Iterator[None]:
    """Within the block, all automata together may take this effort."""
    token = _current.set(Effort(effort.steps, effort.seconds))
    try:
        yield
    finally:
        _current.reset(token)


def current() -> Effort:
    """The effort that is left; that of one automaton outside `limited`."""
    return _current.get() or Effort(MOST.steps, MOST.seconds)


def spend(effort: Effort, steps: int) -> None:
    """Raises: Unfinished if it is more than what is left."""
    effort.steps -= steps
    if effort.steps < 0:
        raise Unfinished("the form is too large: its automaton takes too long to compile", "pattern")
