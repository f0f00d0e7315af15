"""Keeps programs running: restarts a program that ends, with back-off, until it is stopped."""

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import structlog

from dilaserve.stack.process import Program, kill, spawn
from shared.errors import BadInput, DilaserveError

log = structlog.get_logger(__name__)

INITIAL_WAIT_S, MAX_WAIT_S = 0.2, 10.0
STABLE_RUN_S = 10.0  # a run of this length resets the wait
MAX_FAILED_STARTS = 5  # consecutive short runs that stop a stack before it is ready
INVALID_SETTINGS = 2  # exit status of a service


def next_wait_s(last_wait_s: float, ran_s: float) -> float:
    """The wait before the next start. Units: seconds."""
    return INITIAL_WAIT_S if ran_s >= STABLE_RUN_S else min(max(INITIAL_WAIT_S, 2 * last_wait_s), MAX_WAIT_S)


class SupervisedProgram:
    """Keeps one program running. Calls `on_failure` if it fails repeatedly."""

    def __init__(self, program: Program, on_failure: Callable[[DilaserveError], None]) -> None:
        self.program = program
        self._on_failure = on_failure
        self._stop = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None
        self._task = asyncio.create_task(self._run_repeatedly(), name=program.name)

    async def stop(self, within_s: float) -> None:
        """Signal the program to stop; kill it after `within_s` seconds."""
        self._stop.set()
        self.signal()
        _, running = await asyncio.wait([self._task], timeout=within_s)
        if running:
            log.warning("killed: it did not stop in time", program=self.program.name, within_s=within_s)
            self.kill()
            await self._task

    def signal(self) -> None:
        if self._process:
            with suppress(ProcessLookupError):
                self._process.send_signal(self.program.stop_signal)

    def kill(self) -> None:
        self._stop.set()
        if self._process:
            kill(self._process)

    async def _run_repeatedly(self) -> None:
        wait_s, short_runs = 0.0, 0
        while True:
            started_s = time.monotonic()
            status = await self._run()
            ran_s = time.monotonic() - started_s
            if self._stop.is_set():
                return
            short_runs = 0 if ran_s >= STABLE_RUN_S else short_runs + 1
            wait_s = next_wait_s(wait_s, ran_s)
            log.warning("ended; restarting", program=self.program.name, exit_status=status, wait_s=wait_s)
            if error := self._permanent_failure(status, short_runs):
                self._on_failure(error)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), wait_s)
                return

    def _permanent_failure(self, status: int | str, short_runs: int) -> DilaserveError | None:
        if status == INVALID_SETTINGS:
            return BadInput(f"{self.program.name} refuses its settings; see its line above")
        if short_runs >= MAX_FAILED_STARTS:
            where = f"see {self.program.log}" if self.program.log else "see its lines above"
            return DilaserveError(f"{self.program.name} ended {short_runs} times in a row ({status}); {where}")
        return None

    async def _run(self) -> int | str:
        """Run the program once. Returns: its exit status, or the error of its start."""
        try:
            self._process = await spawn(self.program)
        except OSError as error:
            return str(error)
        if self._stop.is_set():  # stopped during its start
            self.signal()
        echo = asyncio.create_task(self._echo(self._process))
        status = await self._process.wait()
        await asyncio.wait([echo], timeout=1)  # a grandchild may hold the pipe open
        echo.cancel()
        return status

    async def _echo(self, process: asyncio.subprocess.Process) -> None:
        if process.stdout is None:
            return
        async for line in process.stdout:
            text = line.removesuffix(b"\n").decode(errors="replace")
            sys.stderr.write(f"{self.program.name:<14} | {text}\n")


class Supervisor:
    """The programs of a stack. Until the stack is `settled`, a program that fails permanently sets `failed`."""

    def __init__(self) -> None:
        self.settled = False
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.failed.add_done_callback(asyncio.Future.exception)  # retrieves the exception
        self._programs: dict[str, SupervisedProgram] = {}  # by name

    def start(self, program: Program) -> None:
        self._programs[program.name] = SupervisedProgram(program, self._fail)

    async def stop(self, order: Sequence[str], within_s: float) -> None:
        """Stop all programs in `order`: all whose names start with the first prefix, then with the next."""
        for prefix in order:
            stopping = [each for name, each in self._programs.items() if name.startswith(prefix)]
            await asyncio.gather(*(each.stop(within_s) for each in stopping))

    async def stop_one(self, name: str, within_s: float) -> None:
        """Stop the program of this name, if it exists, permanently."""
        if stopping := self._programs.get(name):
            await stopping.stop(within_s)
            self._programs.pop(name, None)

    def end(self, name: str) -> None:
        """Signal the program of this name to stop; it starts again."""
        self._programs[name].signal()

    def kill(self) -> None:
        for each in self._programs.values():
            each.kill()

    def _fail(self, error: DilaserveError) -> None:
        if not self.settled and not self.failed.done():
            self.failed.set_exception(error)
