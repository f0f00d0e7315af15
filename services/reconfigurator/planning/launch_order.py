"""The order of launches in a transition: first the launch that takes the fewest GPUs from instances that serve. Pure.

The steps of a plan and the actions of a transition both follow it.
"""

from collections.abc import Collection, Sequence
from typing import TypeVar

from services.reconfigurator.planning.plan import Placement
from shared.messages.launch import InstanceSpec

T = TypeVar("T", Placement, InstanceSpec)


def next_launch(missing: Sequence[T], surplus: Sequence[T], idle: Collection[T] = ()) -> tuple[T, list[T]]:
    """The next of the missing instances, and the surplus instances to stop before its launch, the `idle` ones first.

    `idle` instances do not serve, so that a stop costs nothing. The first launch of several equal ones is taken.
    Source: "Practical Consideration".
    """

    def blocking(launch: T) -> list[T]:
        return sorted((old for old in surplus if overlap(launch, old)), key=lambda old: old not in idle)

    def cost(launch: T) -> tuple[int, int]:
        stops = blocking(launch)
        return sum(old.tp for old in stops if old not in idle), sum(old.tp for old in stops)

    launch = min(missing, key=cost)
    return launch, blocking(launch)


def overlap(a: T, b: T) -> bool:
    """Whether two instances share a GPU."""
    return a.node == b.node and not set(a.gpus).isdisjoint(b.gpus)
