"""Finds the next action on the way to a target from the instances that exist. Pure, so a restart can continue.

The order is that of the plan's steps: before each launch only the stops whose GPUs it needs. Launches on free GPUs run
side by side, and nothing more is stopped until all of them serve. So there are never fewer instances than if each
launch awaited the one before.
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
    """Wait for instances that have been started and do not serve yet."""

    specs: tuple[InstanceSpec, ...]


Action = StartInstance | StopInstance | AwaitReady


def next_action(
    target: Collection[InstanceSpec], running: Collection[InstanceSpec], serving: Collection[InstanceSpec]
) -> Action | None:
    """The next action; None once exactly the target runs and serves.

    `running` are the instances that exist, `serving` those registered and ready. The launch that takes the fewest GPUs
    from running instances comes first, as in `order_steps`.
    Source: "Practical Consideration". Departure: launches that need no stop do not wait for one another.
    """
    surplus = _sorted(spec for spec in running if spec not in target)
    missing = _sorted(spec for spec in target if spec not in running)
    start = min(missing, key=lambda spec: sum(other.tp for other in surplus if overlap(spec, other)), default=None)
    blocking = [other for other in surplus if start and overlap(start, other)]
    if start and not blocking:
        return StartInstance(start)
    if started := _sorted(spec for spec in target if spec in running and spec not in serving):
        return AwaitReady(tuple(started))
    stops = blocking or surplus
    return StopInstance(stops[0]) if stops else None


def without_failed(
    target: Collection[InstanceSpec], before: Collection[InstanceSpec], failed: Collection[InstanceSpec]
) -> list[InstanceSpec]:
    """The target with each instance that failed to start replaced by the earlier instances that fit in its place."""
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
    """Whether an interrupted plan may continue: every running instance is one of the plan's, and its target fits the
    nodes, whose GPUs now are `gpus`."""
    fits = all(spec.node in gpus and spec.gpus[-1] < gpus[spec.node] for spec in target)
    return fits and all(spec in target or spec in before for spec in running)


def overlap(a: InstanceSpec, b: InstanceSpec) -> bool:
    """Whether two instances share a GPU."""
    return a.node == b.node and not set(a.gpus).isdisjoint(b.gpus)


def _sorted(specs: Iterable[InstanceSpec]) -> list[InstanceSpec]:
    return sorted(specs, key=lambda spec: (spec.node, spec.gpus))
