"""Transitions from any state of the cluster to a target, even if instances die."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from services.reconfigurator.execution.transition import (
    Action,
    AwaitReady,
    StartInstance,
    StopInstance,
    can_resume,
    next_action,
    without_failed,
)
from services.reconfigurator.planning.launch_order import next_launch, overlap
from shared.messages.launch import InstanceSpec


def spec(*gpus: int, node: str = "a") -> InstanceSpec:
    return InstanceSpec(node=node, gpus=gpus)


@st.composite
def instances(draw: st.DrawFn) -> frozenset[InstanceSpec]:
    """A partition of some of the GPUs of two nodes."""
    found = set()
    for node in ("a", "b"):
        gpus = draw(st.permutations(range(6)))
        cuts = sorted(draw(st.sets(st.integers(0, 6), max_size=5)))
        for start, stop in pairwise(cuts):
            if draw(st.booleans()):
                found.add(InstanceSpec(node=node, gpus=tuple(sorted(gpus[start:stop]))))
    return frozenset(found)


class Cluster:
    """Follows actions and asserts that each is possible."""

    def __init__(self, running: frozenset[InstanceSpec], serving: frozenset[InstanceSpec]) -> None:
        self.running, self.serving = set(running), set(serving)

    def follow(self, action: Action) -> None:
        match action:
            case StartInstance(new):
                assert not any(overlap(new, other) for other in self.running), "its GPUs are free"
                self.running.add(new)
            case StopInstance(old):
                self.running.remove(old)
                self.serving.discard(old)
            case AwaitReady(started):
                assert started, "something is awaited"
                assert set(started) <= self.running - self.serving
                self.serving.add(started[-1])


@given(target=instances(), running=instances(), data=st.data())
def test_any_state_leads_to_the_target_even_if_instances_die(
    target: frozenset[InstanceSpec], running: frozenset[InstanceSpec], data: st.DataObject
) -> None:
    serving = data.draw(st.sets(st.sampled_from(sorted(running, key=repr))) if running else st.just(set()))
    cluster = Cluster(running, frozenset(serving))
    losses = actions = 0
    while (action := next_action(target, cluster.running, cluster.serving)) is not None:
        actions += 1
        assert actions <= len(running) + 2 * (len(target) + losses)
        if isinstance(action, AwaitReady):
            free = [new for new in target - cluster.running if not any(overlap(new, old) for old in cluster.running)]
            assert not free, "an instance that can start is started before any is awaited"
        if isinstance(action, StopInstance):
            assert target & cluster.running <= cluster.serving, "an instance is stopped while another loads"
            assert action.spec not in target, "an instance of the target is stopped"
            wanted = target - cluster.running
            assert not wanted or any(overlap(action.spec, new) for new in wanted), "only stops whose GPUs are needed"
        cluster.follow(action)
        if losses < 3 and cluster.running and data.draw(st.booleans()):
            losses += 1
            lost = data.draw(st.sampled_from(sorted(cluster.running, key=repr)))
            cluster.running.discard(lost)
            cluster.serving.discard(lost)
    assert cluster.running == target
    assert cluster.running <= cluster.serving


@given(targets=st.lists(instances(), min_size=2, max_size=4), running=instances(), data=st.data())
def test_another_target_may_take_over_between_any_two_actions(
    targets: list[frozenset[InstanceSpec]], running: frozenset[InstanceSpec], data: st.DataObject
) -> None:
    """`Cluster` asserts that each launch finds its GPUs free."""
    draining = data.draw(st.sets(st.sampled_from(sorted(running, key=repr))) if running else st.just(set()))
    cluster, left = Cluster(running, running - draining), set(draining)
    for number, target in enumerate(targets, 1):
        limit = 100 if number == len(targets) else data.draw(st.integers(0, 6))
        for _ in range(limit):
            action = next_action(target, cluster.running, cluster.serving, left)
            if action is None:
                break
            if isinstance(action, StopInstance):
                assert action.spec not in target or action.spec in left
                loading = (target & cluster.running) - cluster.serving - left
                assert not loading, "an instance is stopped while another loads"
                left.discard(action.spec)
            cluster.follow(action)
    assert cluster.running == cluster.serving == targets[-1]


@given(target=instances(), before=instances(), data=st.data())
def test_the_replacement_of_a_failed_launch_fits(
    target: frozenset[InstanceSpec], before: frozenset[InstanceSpec], data: st.DataObject
) -> None:
    failed = data.draw(st.sets(st.sampled_from(sorted(target, key=repr))) if target else st.just(set()))
    left = without_failed(target, before, failed)
    assert not any(overlap(a, b) for i, a in enumerate(left) for b in left[:i])
    assert target - failed <= set(left) <= (target | before) - failed
    lost = before - failed - set(left)
    assert all(any(overlap(old, new) for new in left) for old in lost), "an instance that fits is restored"


def test_a_plan_is_resumed_only_in_its_own_cluster() -> None:
    small, large = [spec(0), spec(1)], [spec(0, 1)]
    assert can_resume(small, large, [spec(0)], {"a": 2})
    assert can_resume(small, large, [], {"a": 2})
    assert not can_resume(small, large, [spec(2)], {"a": 4})
    assert not can_resume(small, large, [spec(0)], {"a": 1})
    assert not can_resume(small, large, [spec(0)], {"b": 2})


def test_instances_that_do_not_serve_are_stopped_before_those_that_do() -> None:
    loads, serves = [spec(0), spec(1)], spec(2, 3)
    target = [spec(0, 1), spec(2), spec(3)]
    assert next_action(target, [*loads, serves], [serves]) == StopInstance(spec(0))
    assert next_action([spec(4)], [*loads, serves, spec(4)], [serves, spec(4)]) == StopInstance(spec(0))


def test_an_instance_of_the_target_that_drains_is_stopped_and_started_again() -> None:
    assert next_action([spec(0)], [spec(0)], [], draining=[spec(0)]) == StopInstance(spec(0))
    assert next_action([spec(0)], [], []) == StartInstance(spec(0))


def test_the_first_launch_stops_idle_instances_first_and_the_fewest_that_serve() -> None:
    serving, idle = spec(0, 1), spec(2, 3)
    assert next_launch([spec(0), spec(2)], [serving, idle], idle=[idle]) == (spec(2), [idle])
    assert next_launch([spec(0), spec(2)], [serving, idle]) == (spec(0), [serving])
    assert next_launch([spec(0, 1, 2, 3)], [serving, idle], idle=[idle]) == (spec(0, 1, 2, 3), [idle, serving])
