"""The cells to which a request is offered, best first, by their loads. Pure.

The better of two cells drawn at random takes the request ("power of two choices": Mitzenmacher, 2001). Gateways that
know the same loads then do not all choose the same cell. If that one is full, the request spills over to the others.
"""

import random
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

C = TypeVar("C", bound=Hashable)  # a cell


@dataclass(frozen=True, slots=True, kw_only=True)
class CellLoad:
    """The state of one cell, as far as a gateway knows it."""

    accepts: bool = True  # false: draining or gone
    slack: float = 0.0  # the free share of the cell, as its scheduler last published it; 0 and below: full
    requests: int = 0  # unfinished requests of the cell, by the same message
    sent: int = 0  # requests that this gateway has sent to it since then

    @property
    def slack_left(self) -> float:
        """The slack less what the sent requests need, each as much as a mean request of the cell."""
        return self.slack - self.sent * max(1.0 - self.slack, 0.0) / max(self.requests, 1)

    @property
    def rank(self) -> tuple[float, int]:
        """The higher, the better."""
        return self.slack_left, -self.sent


def route(cells: Sequence[C], load_of: Callable[[C], CellLoad], source: random.Random) -> Iterator[C]:
    """The cells that accept requests, each once, best first. Reads the loads of two cells, unless these are full or the
    caller asks for a further cell."""
    load_of = cache(load_of)
    best = _better_of_two(cells, load_of, source)
    if best is None or load_of(best).slack_left <= 0:
        accepting = [cell for cell in cells if load_of(cell).accepts]
        with_slack = [cell for cell in accepting if load_of(cell).slack_left > 0]
        best = _better_of_two(with_slack or accepting, load_of, source)
    if best is None:
        return
    yield best
    others = (cell for cell in cells if cell != best and load_of(cell).accepts)
    yield from sorted(others, key=lambda cell: load_of(cell).rank, reverse=True)


def _better_of_two(cells: Sequence[C], load_of: Callable[[C], CellLoad], source: random.Random) -> C | None:
    """The better one of two cells drawn at random, of those that accept requests. The first one drawn wins a tie."""
    drawn = (cell for cell in source.sample(cells, min(2, len(cells))) if load_of(cell).accepts)
    return max(drawn, key=lambda cell: load_of(cell).rank, default=None)
