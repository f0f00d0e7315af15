"""The loads that the console's charts show."""

from itertools import pairwise

from services.gateway.console.cluster_view import LoadView
from services.gateway.console.load_history import MAX_RECENT, OLDER_INTERVAL_S, LoadHistory

HOURS_S = 3 * 3600


def history(seconds: int) -> LoadHistory:
    """With a load in each second from 1 on."""
    made = LoadHistory()
    for t_s in range(1, seconds + 1):
        made.add(LoadView(t_s=float(t_s)))
    return made


def test_the_last_minutes_are_kept_in_full() -> None:
    times = [load.t_s for load in history(HOURS_S).after(HOURS_S - MAX_RECENT)]
    assert times == list(range(HOURS_S - MAX_RECENT + 1, HOURS_S + 1))


def test_the_hour_before_is_kept_with_a_load_in_each_interval() -> None:
    times = [load.t_s for load in history(HOURS_S).after(0.0)]
    assert times == sorted(set(times))
    assert times[0] <= HOURS_S - 3590
    assert max(later - earlier for earlier, later in pairwise(times)) <= OLDER_INTERVAL_S
    assert len(times) < 700


def test_only_loads_after_the_given_time_are_returned() -> None:
    assert [load.t_s for load in history(20).after(18.0)] == [19.0, 20.0]
    assert LoadHistory().after(0.0) == []
