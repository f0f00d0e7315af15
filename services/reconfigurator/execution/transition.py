"""Finds the next action on the way to a target from the instances that exist. Pure, so a restart can continue.

The order is that of the plan's steps: before each launch only the stops whose GPUs it needs. Launches on free GPUs run
side by side, and nothing more is stopped until all of them serve. So there are never fewer instances than if each
launch awaited the one before. Because only the existing instances count, another target may take over between any two
actions.
"""

from collections.abc import Collection, Mapping

import msgspec

from services.reconfigurator.planning.launch_order import next_launch, overlap
from shared.messages.launch import InstanceSpec


class StartInstance(msgspec.Struct, frozen=True):
    spec: InstanceSpec


class StopInstance(msgspec.Struct, frozen=True):
    spec: InstanceSpec


class AwaitReady(msgspec.Struct, frozen=True):
    """Wait for instances that have been started and do not serve yet."""

    specs: tuple[InstanceSpec, ...]


Action = StartInstance | StopInstance | AwaitReady


def next_action(
    target: Collection[InstanceSpec],
    running: Collection[InstanceSpec],
    serving: Collection[InstanceSpec],
    draining: Collection[InstanceSpec] = (),
) -> Action | None:
    """The next action; None once exactly the target runs and serves.

    `running` are the instances that exist, `serving` those registered and ready, `draining` those that take no more
    requests: even one of the target is stopped and started again. The launches have the order of `next_launch`.
    Source: "Practical Consideration". Departure: launches that need no stop do not wait for one another.
    """
    staying = [spec for spec in running if spec in target and spec not in draining]
    surplus = sorted(spec for spec in running if spec not in staying)
    idle = [spec for spec in surplus if spec not in serving]
    missing = sorted(spec for spec in target if spec not in staying)
    start, stops = next_launch(missing, surplus, idle) if missing else (None, [*idle, *surplus])
    if start and not stops:
        return StartInstance(start)
    if started := sorted(spec for spec in staying if spec not in serving):
        return AwaitReady(tuple(started))
    return StopInstance(stops[0]) if stops else None


def without_failed(
    target: Collection[InstanceSpec], before: Collection[InstanceSpec], failed: Collection[InstanceSpec]
) -> list[InstanceSpec]:
    """The target with each instance that failed to start replaced by the earlier instances that fit in its place."""
    kept = [spec for spec in target if spec not in failed]
    for old in before:
        if old not in failed and not any(overlap(old, spec) for spec in kept):
            kept.append(old)
    return sorted(kept)


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
