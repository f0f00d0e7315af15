"""A hung iteration is noticed; time in which the whole process was stopped does not count."""

import asyncio
from collections.abc import Callable

import pytest

from services.worker.monitoring import watchdog
from services.worker.monitoring.watchdog import MIN_LIMIT_S, Watchdog, iteration_limit_s
from shared.messages.steps import StepKind
from shared.profile import LatencyProfile


class Ended(Exception):  # noqa: N818
    """In place of the end of the process."""


async def hangs(monkeypatch: pytest.MonkeyPatch, running: Callable[[], int], ticks: int) -> bool:
    """Whether the watchdog, with a limit of ten ticks, ends the process within a number of ticks."""
    monkeypatch.setattr(watchdog, "TICK_S", 0.001)

    async def on_hang() -> None:
        raise Ended

    seen = 0

    def count() -> int:
        nonlocal seen
        seen += 1
        if seen > ticks:
            raise TimeoutError
        return running()

    try:
        await Watchdog(0.01, count, on_hang).run()
    except Ended:
        return True
    except TimeoutError:
        pass
    return False


async def test_an_iteration_beyond_its_limit_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await hangs(monkeypatch, lambda: 7, ticks=1000)


async def test_an_idle_engine_and_short_iterations_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = iter(range(1, 1000))
    assert not await hangs(monkeypatch, lambda: 0, ticks=50)
    assert not await hangs(monkeypatch, lambda: next(numbers), ticks=50)


async def test_time_in_which_the_process_was_stopped_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    clock = iter(range(0, 100_000, 100))
    monkeypatch.setattr(loop, "time", lambda: float(next(clock)))  # each tick takes 100 s
    assert not await hangs(monkeypatch, lambda: 7, ticks=3)


def test_the_limit_is_a_multiple_of_a_full_batch() -> None:
    profile = LatencyProfile.from_rows([(1, 1024, StepKind.RECOMPUTE, 2.0)])
    assert iteration_limit_s(profile, 1, 1024) == pytest.approx(40.0)
    assert iteration_limit_s(profile, 1, 8) == MIN_LIMIT_S * 4
