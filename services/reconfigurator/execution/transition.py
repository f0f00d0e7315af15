"""What to do next on the way to a target, from what really runs. Pure, so that whoever was interrupted goes on.

The order is that of the plan's steps, before each launch only the stops whose GPUs it needs. Launches whose GPUs are
free already go side by side, and nothing more is stopped until all of them serve: so there are never fewer instances
than if each launch awaited the one before.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from shared.messages.launch import InstanceSpec


@dataclass(frozen=True, slots=True)
class StartInstance:
    spec: InstanceSpec


@dataclass(frozen=True, slots=True)
class StopInstance:
    spec: InstanceSpec


@dataclass(frozen=True, slots=True)
class AwaitReady:
    """They have been started and do not serve yet."""

    specs: tuple[InstanceSpec, ...]


Action = StartInstance | StopInstance | AwaitReady


def next_action(
    target: Collection[InstanceSpec], running: Collection[InstanceSpec], serving: Collection[InstanceSpec]
) -> Action | None:
    """The next thing to do; None once exactly the target runs and serves.

    `running` are the instances that exist, `serving` those registered and ready. The launch that takes the fewest GPUs
    from instances that still run comes first, as in `order_steps`.
    Source: "Practical Consideration". Departure: launches that need no stop do not wait for one another.
    """
    surplus = _sorted(spec for spec in running if spec not in target)
    missing = _sorted(spec for spec in target if spec not in running)
    start = min(missing, key=lambda spec: sum(other.tp for other in surplus if overlap(spec, other)), default=None)
    in_the_way = [other for other in surplus if start and overlap(start, other)]
    if start and not in_the_way:
        return StartInstance(start)
    if started := _sorted(spec for spec in target if spec in running and spec not in serving):
        return AwaitReady(tuple(started))
    stops = in_the_way or surplus
    return StopInstance(stops[0]) if stops else None


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
