"""Long work in a process of its own, which a cancellation ends at once, together with what it has started.

A solver cannot be interrupted from a thread, and what builds its models would keep the event loop waiting.
"""

import asyncio
import multiprocessing
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import ParamSpec, TypeVar

from shared.errors import RetryLater

P = ParamSpec("P")
R = TypeVar("R")


async def run_in_process(work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """What `work` returns, which as its arguments must be picklable.

    Raises: what it raises; RetryLater if the process ends without a word.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(theirs, work, args, kwargs), daemon=True)
    process.start()
    theirs.close()
    try:
        done: tuple[R, None] | tuple[None, Exception] = await asyncio.to_thread(ours.recv)
    except EOFError:
        raise RetryLater("the process ended without a result") from None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid or 0, signal.SIGKILL)
        process.kill()  # where it had no group of its own yet
        process.join()
    result, error = done
    if error is not None:
        raise error
    return result  # type: ignore[return-value]


def _work(pipe: Connection, work: Callable[..., R], args: tuple[object, ...], kwargs: dict[str, object]) -> None:
    os.setpgid(0, 0)
    try:
        pipe.send((work(*args, **kwargs), None))
    except Exception as error:
        pipe.send((None, error))
