"""The worker's state machine: step jobs in, one batch of denoising steps at a time, results out.

Knows no bus and no threads. It holds the requests of this instance and the queue of their jobs; it decides which
jobs run together, and refuses what cannot run. What to run next, and with which threshold, the scheduler decides.
"""

import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import structlog
import torch

from services.worker.cache.cache_mode import CacheMode, is_obsolete, part_for, validate_job
from services.worker.cache.kv_allocator import KvAllocator
from services.worker.engine.batch import Part, pack
from services.worker.engine.provisional_tokens import ProvisionalTokens, provisional_tokens
from services.worker.engine.sequence_state import SequenceState, open_sequence
from services.worker.engine.step_jobs import StepJob, read_jobs, to_forget
from services.worker.engine.step_results import IterationResult, StepOutcome, StepReport, unmask
from services.worker.model.model_runner import ModelRunner
from shared.errors import BadInput
from shared.messages.steps import RequestState, StepJobs, StepResults

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """How much one iteration takes on: tokens fed, and requests."""

    tokens: int
    requests: int


class Engine:
    """Holds requests and runs their steps."""

    def __init__(self, runner: ModelRunner, mode: CacheMode, limits: EngineLimits, instance_id: str) -> None:
        self._runner = runner
        self._config = runner.config
        self._mode = mode
        self._limits = limits
        self._instance_id = instance_id
        self._pool = KvAllocator(runner.cache_tokens)
        self._epoch = -1
        self._held: dict[int, SequenceState] = {}
        self._queue: deque[StepJob] = deque()
        self._report = StepReport()
        self._guesses: list[ProvisionalTokens] = []

    @property
    def waiting(self) -> bool:
        """Whether a job waits for the next iteration."""
        return bool(self._queue)

    @property
    def num_held(self) -> int:
        """Requests held."""
        return len(self._held)

    @property
    def cache_tokens(self) -> int:
        """Tokens that the cache holds at most."""
        return self._pool.size

    @property
    def free_cache_tokens(self) -> int:
        """Tokens that the cache has room for."""
        return self._pool.free

    def accept(self, message: StepJobs, jobs: list[StepJob] | None = None) -> None:
        """Apply a message: drop requests, open new ones, queue their `jobs`. A superseded scheduler's is refused.

        `jobs` are the message's, if they have been read already. Raises: BadInput if its columns do not fit together.
        """
        jobs = read_jobs(message) if jobs is None else jobs
        if message.epoch < self._epoch:
            log.warning("step jobs of a superseded scheduler refused", epoch=message.epoch, current=self._epoch)
            return
        if message.epoch > self._epoch:
            self._epoch = message.epoch
            self._forget_all()
        self._drop(to_forget(message, self._held))
        refused = {state.ticket for state in message.states if not self._open(state)}
        self._queue.extend(job for job in jobs if job.ticket not in refused)

    def iterate(self) -> StepResults | None:
        """As `run`: its message."""
        ran = self.run()
        return None if ran is None else ran.message()

    def run(self) -> IterationResult | None:
        """Run one batch of what waits; None if there was nothing to run and nothing to say."""
        outcome: StepOutcome | None = None
        picked: list[tuple[Part, StepJob]] = []
        while outcome is None:
            started = time.perf_counter()
            picked = self._take()
            if not picked:
                break
            picked.sort(key=lambda pair: pair[0].order)
            with suppress(torch.OutOfMemoryError):
                outcome = self._run(picked)
            if outcome is None:  # not handled above: until the error is gone, what the forward had made is kept
                self._shrink(picked)
        report, self._report = self._report, StepReport()
        if outcome is None and report.empty:
            return None
        latency_s = time.perf_counter() - started
        return IterationResult(self._instance_id, self._epoch, outcome, [job for _, job in picked], report, latency_s)

    def pop_provisional_tokens(self) -> list[ProvisionalTokens]:
        """What the last iteration guessed for requests that are watched."""
        guesses, self._guesses = self._guesses, []
        return guesses

    def _run(self, picked: list[tuple[Part, StepJob]]) -> StepOutcome:
        parts = [part for part, _ in picked]
        thresholds = np.array([job.threshold for _, job in picked], dtype=np.float64)
        batch = pack(parts, self._config)
        predictions = self._runner.run(batch)
        outcome = unmask(parts, batch, predictions, thresholds)
        if any(part.sequence.wants_provisional for part in parts):
            self._guesses += provisional_tokens(parts, batch, predictions, self._config.mask_token_id)
        for part in parts:
            part.sequence.last_step = part.step
            if part.recomputes:
                part.sequence.cached_block = part.block
        return outcome

    def _take(self) -> list[tuple[Part, StepJob]]:
        """The next batch: waiting jobs in order, one of each request, as far as the limits and the cache go."""
        picked: list[tuple[Part, StepJob]] = []
        later: list[StepJob] = []
        busy: set[int] = set()
        tokens, full = 0, False
        while self._queue and len(picked) < self._limits.requests:
            job = self._queue.popleft()
            if job.ticket in busy:
                later.append(job)
                continue
            sequence = self._runnable(job)
            if sequence is None:
                continue
            busy.add(job.ticket)
            if self._needs_room(sequence) and (full or not self._make_room(sequence)):
                full = True  # who waits for room keeps its place before those that come after it
                later.append(job)
                continue
            part = part_for(job, sequence, self._mode, self._config)
            tokens += part.stop - part.start
            if picked and tokens > self._limits.tokens:
                later.append(job)
                break
            picked.append((part, job))
        self._queue.extendleft(reversed(later))
        return picked

    def _runnable(self, job: StepJob) -> SequenceState | None:
        """Whose step this is; None where there is nothing to run: unknown, done before, or impossible."""
        sequence = self._held.get(job.ticket)
        if sequence is None:
            self._report.missing.append(job.ticket)
            return None
        if job.step <= sequence.last_step:
            return None  # the same name never runs twice
        reason = validate_job(job, sequence)
        if reason is None and self._needs_room(sequence) and len(sequence.canvas) > self._pool.size:
            reason = f"{len(sequence.canvas)} tokens; this instance's cache holds {self._pool.size}"
        if reason is not None:
            self._report.fail(job.ticket, reason)
            return None
        return None if is_obsolete(job, sequence, self._config) else sequence

    def _needs_room(self, sequence: SequenceState) -> bool:
        return self._mode is not CacheMode.NONE and not len(sequence.kv_entries)

    def _make_room(self, sequence: SequenceState) -> bool:
        entries = self._pool.take(len(sequence.canvas))
        if entries is not None:
            sequence.kv_entries = entries
        return entries is not None

    def _shrink(self, picked: list[tuple[Part, StepJob]]) -> None:
        """The device ran out of memory: smaller batches from now on; a request that alone is too large fails."""
        tokens = sum(part.stop - part.start for part, _ in picked)
        log.warning("out of device memory", batch_tokens=tokens, requests=len(picked))
        if len(picked) == 1:
            self._report.fail(picked[0][1].ticket, f"a step of {tokens} tokens does not fit in the device's memory")
            return
        self._limits = EngineLimits(tokens // 2, self._limits.requests)
        self._queue.extendleft(job for _, job in reversed(picked))

    def _open(self, state: RequestState) -> bool:
        """Hold a request. Returns: whether its state is valid."""
        if state.ticket in self._held:  # out of date: it moved away and back, and the drop in between was lost
            self._drop([state.ticket])
        try:
            self._held[state.ticket] = open_sequence(state, self._config)
        except BadInput as error:
            self._report.fail(state.ticket, error.message)
            return False
        return True

    def _drop(self, tickets: list[int]) -> None:
        if not tickets:
            return
        for ticket in tickets:
            self._close(ticket)
        gone = set(tickets)
        self._queue = deque(job for job in self._queue if job.ticket not in gone)

    def _close(self, ticket: int) -> None:
        sequence = self._held.pop(ticket, None)
        if sequence is not None:
            self._pool.give(sequence.kv_entries)

    def _forget_all(self) -> None:
        for ticket in list(self._held):
            self._close(ticket)
        self._queue.clear()
        self._report = StepReport()
