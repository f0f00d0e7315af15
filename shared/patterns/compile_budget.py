"""The work that compiling one form (a request's pattern, grammar or JSON schema) may take, counted while it is done.

A few characters such as (a|b)*a(a|b){30} describe billions of states, so the work is not known before.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TypeVar

from shared.errors import BadInput


class TooLarge(BadInput):
    """The form exceeds a limit of the whole form, so leaving out one part does not help."""


class BudgetExceeded(TooLarge):
    """Compiling the form needs more than the budget that is left; a larger one may be enough."""


@dataclass(slots=True)
class Budget:
    """Steps of the automata, about 8 µs each, and states of lists whose items have counters."""

    steps: int
    list_states: int = 5_000
    may_cut: bool = True  # whether strings in lists may be shorter, for more items

    def spend(self, steps: int) -> None:
        """Raises: BudgetExceeded if it is more than what is left."""
        self.steps -= steps
        if self.steps < 0:
            raise BudgetExceeded(f"the form is too large: compiling it may take {LARGE.steps:,} steps", "pattern")


SMALL = Budget(steps=40_000)
LARGE = Budget(steps=600_000)
Found = TypeVar("Found")
_current: ContextVar[Budget | None] = ContextVar("budget", default=None)


@contextmanager
def limited_to(budget: Budget) -> Iterator[Budget]:
    """All that is compiled within the block shares a copy of this budget, which it gets."""
    token = _current.set(own := replace(budget))
    try:
        yield own
    finally:
        _current.reset(token)


def current_budget() -> Budget:
    """The budget of the block around; outside of one, each call returns a new LARGE budget."""
    return _current.get() or replace(LARGE)


def first_that_fits(*ways: Callable[[], Found]) -> Found:
    """The result of the first way whose automaton is not too large. Raises: BudgetExceeded at once; TooLarge if none is
    small enough."""
    for way in ways[:-1]:
        try:
            return way()
        except BudgetExceeded:
            raise
        except TooLarge:
            continue
    return ways[-1]()
