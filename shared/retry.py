"""Retries with exponential back-off."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import stamina

from shared.errors import RetryLater

WAIT_INITIAL_S = 0.05
WAIT_MAX_S = 2.0

T = TypeVar("T")


def is_retry_later(error: Exception) -> bool:
    return isinstance(error, RetryLater)


async def retry(
    action: Callable[[], Awaitable[T]],
    *,
    wait_initial_s: float = WAIT_INITIAL_S,
    wait_max_s: float = WAIT_MAX_S,
    timeout_s: float | None = None,
    is_retryable: Callable[[Exception], bool] = is_retry_later,
) -> T:
    """Call `action` and return its result. After an error that `is_retryable`, wait and call it again; the waits
    grow from `wait_initial_s` to `wait_max_s`.

    stamina logs each failure. Raises: any other error of `action`; the last error after `timeout_s`.
    """
    failures: list[Exception] = []
    try:  # without stamina, whose preparation takes longer than most actions
        return await action()
    except Exception as error:
        if not is_retryable(error):
            raise
        failures.append(error)

    async def attempt() -> T:
        if failures:
            raise failures.pop()
        return await action()

    caller = stamina.AsyncRetryingCaller(
        attempts=None, timeout=timeout_s, wait_initial=wait_initial_s, wait_max=wait_max_s, wait_jitter=0.1
    )
    return await caller(is_retryable, attempt)
