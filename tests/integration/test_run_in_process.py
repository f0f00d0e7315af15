"""A function in a process of its own."""

import asyncio
import os
import subprocess
from pathlib import Path

import pytest

from shared.errors import RetryLater
from shared.run_in_process import run_in_process

LIMIT_S = 60.0


async def test_the_result_is_returned() -> None:
    assert await run_in_process(divmod, 7, 2) == (3, 1)


async def test_an_error_is_raised_in_the_parent() -> None:
    with pytest.raises(ZeroDivisionError):
        await run_in_process(divmod, 7, 0)


async def test_a_process_that_dies_raises_retry_later() -> None:
    with pytest.raises(RetryLater):
        await run_in_process(os._exit, 3)


async def test_a_cancellation_kills_the_children_of_the_process(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    working = asyncio.create_task(run_in_process(subprocess.run, f"(echo begun; exec sleep 600) > {pipe}", shell=True))  # noqa: S604
    async with asyncio.timeout(LIMIT_S):
        with await asyncio.to_thread(pipe.open) as output:
            assert await asyncio.to_thread(output.readline) == "begun\n"
            working.cancel()
            with pytest.raises(asyncio.CancelledError):
                await working
            assert await asyncio.to_thread(output.read) == ""  # it returns once no process can write
