"""Keeps programs running: one that ends is started again, with back-off, until it is told to stop."""

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import structlog

from dilaserve.stack.process import Program, kill, lines, spawn
from shared.errors import BadInput, DilaserveError

log = structlog.get_logger(__name__)

INITIAL_WAIT_S, MAX_WAIT_S = 0.2, 10.0
STABLE_RUN_S = 10.0  # a program that ran this long starts again with the first wait
MAX_FAILED_STARTS = 5  # ends in a row, none after running well, that stop a stack which has not been ready yet
REFUSED = 2  # exit status of a program that refuses its settings


def next_wait_s(last_wait_s: float, ran_s: float) -> float:
    """The wait before the next start. Units: seconds."""
    return INITIAL_WAIT_S if ran_s >= STABLE_RUN_S else min(max(INITIAL_WAIT_S, 2 * last_wait_s), MAX_WAIT_S)


class SupervisedProgram:
    """Keeps one program running. `despair` is told when it looks as if it never will."""

    def __init__(self, program: Program, despair: Callable[[DilaserveError], None]) -> None:
        self.program = program
        self._despair = despair
        self._stop = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None
        self._task = asyncio.create_task(self._keep(), name=program.name)

    async def stop(self, within_s: float) -> None:
        """Ask it to end; kill it when it has not within the time."""
        self._stop.set()
        if self._process:
            with suppress(ProcessLookupError):
                self._process.send_signal(self.program.stop_signal)
        _, still_there = await asyncio.wait([self._task], timeout=within_s)
        if still_there:
            log.warning("killed: it did not end in time", program=self.program.name, within_s=within_s)
            self.kill()
            await self._task

    def kill(self) -> None:
        self._stop.set()
        if self._process:
            kill(self._process)

    async def _keep(self) -> None:
        wait_s, short_runs = 0.0, 0
        while True:
            started_s = time.monotonic()
            status = await self._run()
            ran_s = time.monotonic() - started_s
            if self._stop.is_set():
                return
            short_runs = 0 if ran_s >= STABLE_RUN_S else short_runs + 1
            wait_s = next_wait_s(wait_s, ran_s)
            log.warning("ended; starting it again", program=self.program.name, exit_status=status, wait_s=wait_s)
            if error := self._hopeless(status, short_runs):
                self._despair(error)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), wait_s)
                return

    def _hopeless(self, status: int | str, short_runs: int) -> DilaserveError | None:
        if status == REFUSED:
            return BadInput(f"{self.program.name} refuses its settings; its own line above says why")
        if short_runs >= MAX_FAILED_STARTS:
            where = f"see {self.program.log}" if self.program.log else "its own lines above say why"
            return DilaserveError(f"{self.program.name} ended {short_runs} times in a row ({status}); {where}")
        return None

    async def _run(self) -> int | str:
        """Run it once. Returns: its exit status, or why it could not be started."""
        try:
            self._process = await spawn(self.program)
        except OSError as error:
            return str(error)
        if self._stop.is_set():  # told to stop while it was being started
            self._process.send_signal(self.program.stop_signal)
        echo = asyncio.create_task(self._echo(self._process))
        status = await self._process.wait()
        await asyncio.wait([echo], timeout=1)  # a grandchild may hold the pipe open
        echo.cancel()
        return status

    async def _echo(self, process: asyncio.subprocess.Process) -> None:
        if process.stdout is None:
            return
        async for line in lines(process.stdout):
            sys.stderr.write(f"{self.program.name:<14} | {line.decode(errors='replace')}\n")


class Supervisor:
    """The programs of a stack. Until it is `settled`, `hopeless` fails with the reason when one can never run."""

    def __init__(self) -> None:
        self.settled = False
        self.hopeless: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.hopeless.add_done_callback(asyncio.Future.exception)  # so that it may go unread
        self._keepers: list[SupervisedProgram] = []

    def start(self, program: Program) -> None:
        self._keepers.append(SupervisedProgram(program, self._despair))

    async def stop(self, order: Sequence[str], within_s: float) -> None:
        """Stop all programs: those whose name starts as the first of `order` together, then the next."""
        for prefix in order:
            keepers = [keeper for keeper in self._keepers if keeper.program.name.startswith(prefix)]
            await asyncio.gather(*(keeper.stop(within_s) for keeper in keepers))

    async def stop_one(self, name: str, within_s: float) -> None:
        """Stop the program of this name, if there is one, for good."""
        for keeper in [keeper for keeper in self._keepers if keeper.program.name == name]:
            await keeper.stop(within_s)
        self._keepers = [keeper for keeper in self._keepers if keeper.program.name != name]

    def kill(self) -> None:
        """End every program at once."""
        for keeper in self._keepers:
            keeper.kill()

    def _despair(self, error: DilaserveError) -> None:
        if not self.settled and not self.hopeless.done():
            self.hopeless.set_exception(error)
