"""What to do next on the way to a target, from what really runs. Pure, so that whoever was interrupted goes on.

The order is that of the plan's steps: one launch at a time, before each only the stops whose GPUs it needs.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from shared.messages.launch import InstanceSpec


@dataclass(frozen=True, slots=True)
class Start:
    spec: InstanceSpec


@dataclass(frozen=True, slots=True)
class Stop:
    spec: InstanceSpec


@dataclass(frozen=True, slots=True)
class Await:
    """It has been started and does not serve yet."""

    spec: InstanceSpec


Action = Start | Stop | Await


def next_action(
    target: Collection[InstanceSpec], running: Collection[InstanceSpec], serving: Collection[InstanceSpec]
) -> Action | None:
    """The next thing to do; None once exactly the target runs and serves.

    Source: "Practical Consideration". `running` are the instances that exist, `serving` those registered and ready. The
    launch that takes the fewest GPUs from instances that still run comes first, as in `order_steps`.
    """
    if started := _sorted(spec for spec in target if spec in running and spec not in serving):
        return Await(started[0])
    surplus = _sorted(spec for spec in running if spec not in target)
    if missing := _sorted(spec for spec in target if spec not in running):
        start = min(missing, key=lambda spec: sum(other.tp for other in surplus if overlap(spec, other)))
        in_the_way = [other for other in surplus if overlap(start, other)]
        return Stop(in_the_way[0]) if in_the_way else Start(start)
    return Stop(surplus[0]) if surplus else None


def without_failed(
    target: Collection[InstanceSpec], before: Collection[InstanceSpec], failed: Collection[InstanceSpec]
) -> list[InstanceSpec]:
    """The target where some could not be started: in their place what stood there before, as far as it fits."""
    kept = [spec for spec in target if spec not in failed]
    for old in before:
        if old not in failed and not any(overlap(old, spec) for spec in kept):
            kept.append(old)
    return _sorted(kept)


def can_resume(
    target: Collection[InstanceSpec],
    before: Collection[InstanceSpec],
    running: Collection[InstanceSpec],
    gpus: Mapping[str, int],
) -> bool:
    """Whether a plan that was interrupted may be gone on with: nothing runs that it does not know of, and its target
    fits the nodes, with so many `gpus` each, as they are now."""
    fits = all(spec.node in gpus and spec.gpus[-1] < gpus[spec.node] for spec in target)
    return fits and all(spec in target or spec in before for spec in running)


def overlap(a: InstanceSpec, b: InstanceSpec) -> bool:
    """Whether two instances share a GPU."""
    return a.node == b.node and not set(a.gpus).isdisjoint(b.gpus)


def _sorted(specs: Iterable[InstanceSpec]) -> list[InstanceSpec]:
    return sorted(specs, key=lambda spec: (spec.node, spec.gpus))
