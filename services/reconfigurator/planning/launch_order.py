"""The order of launches in a transition: first the launch that takes the fewest GPUs from instances that serve. Pure.

The steps of a plan and the actions of a transition both follow it.
"""

from collections.abc import Collection, Sequence
from typing import Protocol, TypeVar


class OnGpus(Protocol):
    """An instance's place."""

    @property
    def node(self) -> int | str: ...
    @property
    def gpus(self) -> Collection[int]: ...
    @property
    def tp(self) -> int: ...


New = TypeVar("New", bound=OnGpus)
Old = TypeVar("Old", bound=OnGpus)


def next_launch(missing: Sequence[New], surplus: Sequence[Old], idle: Collection[Old] = ()) -> tuple[New, list[Old]]:
    """The next of the missing instances, and the surplus instances to stop before its launch, the `idle` ones first.

    `idle` instances do not serve, so that a stop costs nothing. The first launch of several equal ones is taken.
    Source: "Practical Consideration".
    """

    def blocking(launch: New) -> list[Old]:
        return sorted((old for old in surplus if overlap(launch, old)), key=lambda old: old not in idle)

    def cost(launch: New) -> tuple[int, int]:
        stops = blocking(launch)
        return sum(old.tp for old in stops if old not in idle), sum(old.tp for old in stops)

    launch = min(missing, key=cost)
    return launch, blocking(launch)


def overlap(a: OnGpus, b: OnGpus) -> bool:
    """Whether two instances share a GPU."""
    return a.node == b.node and not set(a.gpus).isdisjoint(b.gpus)
