"""Runs a function in a process of its own; cancelling it kills the process and its children at once.

A thread would not do: a solver in it cannot be interrupted, and building its models would block the event loop.
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
EXIT_S = 2.0  # for the process's own end after its result
LOWEST_PRIORITY = 19  # for os.nice, in a function that may wait for all other programs of the machine


async def run_in_process(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call `function`; its arguments and result must be picklable.

    Raises: the error of `function`; RetryLater if the process dies.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_call, args=(sender, function, args, kwargs), daemon=True)
    process.start()
    sender.close()
    try:
        received: tuple[R, None] | tuple[None, Exception] = await asyncio.to_thread(receiver.recv)
        await asyncio.to_thread(process.join, EXIT_S)  # its end removes the semaphores that its modules have made
    except EOFError:
        raise RetryLater("the process ended without a result") from None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid or 0, signal.SIGKILL)
        process.kill()  # if it has no process group of its own yet
        process.join()
    result, error = received
    if error is not None:
        raise error
    return result  # type: ignore[return-value]


def _call(pipe: Connection, function: Callable[..., R], args: tuple[object, ...], kwargs: dict[str, object]) -> None:
    os.setpgid(0, 0)
    try:
        pipe.send((function(*args, **kwargs), None))
    except Exception as error:
        pipe.send((None, error))
