"""Algorithm 3: no instance receives more than it can hold; the pages that the scheduler knows each to have."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler.algorithms.placement import may_find_room, place_in_order, token_load
from services.scheduler.core import SchedulerCore
from services.scheduler.events import Command, InstanceLost, InstanceUpdated, RequestCancelled
from services.scheduler.state.fleet import Fleet
from services.scheduler.state.prefix_index import PrefixIndex
from services.scheduler.state.request_table import NOWHERE, RequestTable
from shared.messages.instances import InstanceState
from tests.builders import arrival
from tests.support.present import present
from tests.support.scripted_cell import make_cell, registered
from tests.support.scripted_worker import ScriptedWorker


def limited(
    name: str, batch: int, cache: int, requests: int, state: InstanceState = InstanceState.READY
) -> InstanceUpdated:
    return registered(name, state=state, max_batch_tokens=batch, cache_tokens=cache, max_batch_requests=requests)


def overloaded(core: SchedulerCore) -> Iterator[str]:
    """The instances whose requests exceed their limits; a single request may be longer than a batch."""
    for name, index in core.fleet.index_of.items():
        rows = np.flatnonzero((core.table.ticket != 0) & (core.table.instance == index))
        instance = present(core.fleet.instances[index])
        tokens = int(core.table.tokens[rows].sum())
        assert (len(rows), tokens) == (core.fleet.requests[index], core.fleet.tokens[index])
        within = tokens <= min(instance.max_batch_tokens, instance.cache_tokens or tokens)
        if len(rows) > instance.max_batch_requests or (len(rows) > 1 and not within):
            yield name


@pytest.mark.parametrize("policy", ["dilaserve", "llumnix", "infaas"])
@settings(max_examples=12)
@given(data=st.data())
def test_no_instance_exceeds_its_batch_or_cache_capacity(policy: str, data: st.DataObject) -> None:
    cell = make_cell({}, caching=data.draw(st.booleans()), policy=policy)
    limits = {
        name: (
            data.draw(st.integers(100, 400)),
            data.draw(st.sampled_from([0, 150, 300])),
            data.draw(st.integers(1, 4)),
        )
        for name in ("a-1", "b-1", "c-1")
    }
    cell.workers = {name: ScriptedWorker(name, per_step=16) for name in limits}
    commands: list[Command] = []
    for turn in range(12):
        events = cell.answers(commands)
        for chance in data.draw(st.sets(st.sampled_from(["arrive", "leave", "join", "drain", "cancel"]), max_size=3)):
            name = data.draw(st.sampled_from(list(limits)))
            match chance:
                case "arrive":
                    events += [arrival(f"r{turn}-{i}", prompt_tokens=data.draw(st.integers(1, 150))) for i in range(3)]
                case "leave":
                    events.append(InstanceLost(name))
                case "join":
                    events.append(limited(name, *limits[name]))
                case "drain":
                    events.append(limited(name, *limits[name], InstanceState.DRAINING))
                case "cancel":
                    events.append(RequestCancelled(f"r{turn - 1}-0"))
        cell.now_s += 0.1
        commands = cell.send(*events)
        assert list(overloaded(cell.core)) == []


@given(
    limits=st.lists(st.tuples(st.integers(100, 400), st.integers(1, 4), st.booleans()), min_size=1, max_size=3),
    requests=st.lists(st.tuples(st.integers(1, 300), st.integers(NOWHERE, 2), st.booleans()), min_size=1, max_size=24),
)
def test_rows_filtered_before_placement_would_find_no_room(
    limits: list[tuple[int, int, bool]], requests: list[tuple[int, int, bool]]
) -> None:
    """`limits`: batch tokens, requests and openness of each instance; `requests`: prompt tokens and instance of each
    request, and whether it is to be placed."""
    table, fleet = RequestTable(candidates=1), Fleet()
    for i, (batch, count, is_open) in enumerate(limits):
        state = InstanceState.READY if is_open else InstanceState.DRAINING
        fleet.update(limited(f"i-{i}", batch, 0, count, state).instance, 0.0)
    rows = []
    for i, (prompt, index, is_to_be_placed) in enumerate(requests):
        row = table.add(arrival(f"r{i}", prompt_tokens=prompt))
        if NOWHERE < index < len(limits) and fleet.open[index]:
            table.instance[row] = index
            fleet.add_load(index, int(table.tokens[row]), requests=1)
        if is_to_be_placed or table.instance[row] == NOWHERE:
            rows.append(row)
    asking = np.array(rows, dtype=np.int64)
    may = may_find_room(asking, table, fleet)
    of_all = place_in_order(asking, table, fleet, token_load)
    assert (of_all[~may] == NOWHERE).all()
    assert of_all[may].tolist() == place_in_order(asking[may], table, fleet, token_load).tolist()


@pytest.mark.parametrize(("tokens_there", "instance"), [(100, 0), (300, 1)])
def test_a_request_goes_where_its_prefix_is_cached_unless_that_is_busy(tokens_there: int, instance: int) -> None:
    table, fleet = RequestTable(candidates=1, caching=True, exact=True), Fleet()
    for index in range(2):
        fleet.update(registered(f"i-{index}", prefix_tokens=1024, prefix_page=32).instance, 0.0)
    first = table.add(arrival("r0", prompt_tokens=200))
    fleet.prefixes.store(0, table.page_names(first, fleet.prefixes))
    fleet.add_load(0, tokens_there, requests=1)
    row = table.add(arrival("r1", prompt_tokens=200))
    assert place_in_order(np.array([row]), table, fleet, token_load).tolist() == [instance]


@pytest.mark.parametrize(("exact", "placed"), [(False, 8), (True, 40)])
def test_with_an_exact_cache_the_cache_alone_limits_the_requests_of_an_instance(*, exact: bool, placed: int) -> None:
    """A step then computes only blocks."""
    table, fleet = RequestTable(candidates=1, caching=True, exact=exact), Fleet(exact=exact)
    fleet.update(registered("i", max_batch_tokens=1024, max_batch_requests=64, cache_tokens=100_000).instance, 0.0)
    rows = np.array([table.add(arrival(f"r{i}", prompt_tokens=64, output_tokens=64)) for i in range(40)])
    assert np.count_nonzero(place_in_order(rows, table, fleet, token_load) == 0) == placed


@pytest.mark.parametrize(("min_gain", "instance"), [(0.0, 1), (0.1, 1), (0.2, 0)])
def test_a_request_leaves_its_instance_only_for_a_sufficient_gain(min_gain: float, instance: int) -> None:
    """With the request, its own instance has 200 tokens; the other would have 170."""
    table, fleet = RequestTable(candidates=1), Fleet()
    for index, tokens in enumerate((72, 42)):
        fleet.update(limited(f"i-{index}", 1000, 0, 10).instance, 0.0)
        fleet.add_load(index, tokens, requests=1)
    row = table.add(arrival("r", prompt_tokens=64, output_tokens=64))
    table.instance[row] = 0
    fleet.add_load(0, int(table.tokens[row]), requests=1)
    assert place_in_order(np.array([row]), table, fleet, token_load, min_gain).tolist() == [instance]


PAGE = 32  # tokens


def index_of(pages: int) -> PrefixIndex:
    index = PrefixIndex()
    index.update(0, pages * PAGE + PAGE - 1, PAGE)
    return index


def cached_pages(index: PrefixIndex, names: list[bytes], size: int = 1) -> list[int]:
    """The pages of a text with these that each instance has."""
    return [int(tokens) // PAGE for tokens in np.broadcast_to(index.cached_tokens(names, size), size)]


@pytest.mark.parametrize("capacity", [1, 3, 4])
def test_an_instance_keeps_as_many_whole_pages_as_it_has_room_for(capacity: int) -> None:
    index, names = index_of(capacity), [bytes([i]) for i in range(3)]
    index.store(0, names)
    assert cached_pages(index, names, 2) == [min(capacity, 3), 0]


def test_the_least_recently_used_pages_are_forgotten_first_and_a_beginning_is_kept() -> None:
    index, old, new = index_of(4), [b"a", b"b", b"c"], [b"x", b"y"]
    index.store(0, old)
    index.store(0, old[:1])
    index.store(0, new)
    assert [cached_pages(index, names) for names in (new, old)] == [[2], [2]]
    index.store(0, [b"p", b"q", b"r"])
    assert [cached_pages(index, names) for names in (new, old)] == [[1], [0]]


def test_an_instance_with_other_pages_is_left_out_until_no_other_has_any() -> None:
    index = index_of(2)
    index.update(1, 640, 2 * PAGE)
    index.store(1, [b"a"])
    assert cached_pages(index, [b"a"], 2) == [0, 0]
    index.forget(0)
    assert index.page_tokens == 0
    index.update(1, 640, 2 * PAGE)
    index.store(1, [b"a"])
    assert cached_pages(index, [b"a"], 2) == [0, 2]
