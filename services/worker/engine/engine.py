"""The worker's state machine: step jobs in, one batch of denoising steps at a time, results out.

It knows neither the bus nor threads. It holds the requests of this instance and the queue of their jobs, decides which
jobs run together, and rejects jobs that cannot run. The scheduler decides the steps and their thresholds.
"""

import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, replace

import structlog
import torch

from services.worker.cache.prefix_pages import NO_PREFIXES, PrefixSize
from services.worker.engine.batch import Part, pack
from services.worker.engine.batch_limit import BatchLimit
from services.worker.engine.cache_mode import CacheMode, check_job, is_obsolete, part_for, rebuild_part
from services.worker.engine.kv_reservations import KvReservations, tickets_to_evict
from services.worker.engine.readers import READERS
from services.worker.engine.sequence_state import SequenceState, open_sequence
from services.worker.engine.step_jobs import StepJob, read_jobs
from services.worker.engine.step_results import IterationResult, RanBatch, StepOutcome, StepReport, joined, write_tokens
from services.worker.model.forward_batch import ForwardBatch
from services.worker.model.model_runner import ModelRunner
from services.worker.patterns.constraint import PatternConstraint
from services.worker.patterns.pattern_cache import PatternSource
from shared.errors import BadInput, RetryLater
from shared.messages.requests import Request
from shared.messages.steps import RequestState, StepJobs, StepResults

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """The limits of one iteration."""

    tokens: int  # fed to the model
    requests: int


class Engine:
    """Holds requests and runs their steps."""

    def __init__(
        self,
        runner: ModelRunner,
        mode: CacheMode,
        limits: EngineLimits,
        instance_id: str,
        prefixes: PrefixSize = NO_PREFIXES,
        patterns: PatternSource | None = None,
    ) -> None:
        """`prefixes`: the part of the cache for the beginnings of texts. `patterns`: None refuses requests that have a
        pattern."""
        self._runner = runner
        self.config = runner.config
        self.mode = mode
        self._limit, self._max_requests = BatchLimit(limits.tokens), limits.requests
        self._instance_id = instance_id
        self._patterns = patterns
        self._cache = KvReservations(mode, runner.cache_tokens, prefixes)
        self.cache_tokens = self._cache.allocator.size  # its capacity, without the part for prefixes
        self.prefixes = self._cache.prefixes  # the beginnings of texts that it holds
        self._epoch = -1
        self._resident: dict[int, SequenceState] = {}
        self._queue: deque[StepJob] = deque()
        self._last_batch = 0  # number of the last iteration, as the scheduler counts
        self._report = StepReport()
        self.batch_tokens = 0  # of the iteration that runs, or ran last
        self.num_faults = 0  # requests that failed for an unexpected error

    @property
    def waiting(self) -> bool:
        """Whether a job waits for the next iteration."""
        return bool(self._queue)

    @property
    def num_resident(self) -> int:
        """The number of resident requests."""
        return len(self._resident)

    @property
    def max_batch_tokens(self) -> int:
        """The most tokens of an iteration that the device's memory holds, as far as is known."""
        return self._limit.tokens

    @property
    def used_cache_tokens(self) -> int:
        """The tokens of the cache that requests hold."""
        return self.cache_tokens - self._cache.allocator.num_free

    def sequence(self, ticket: int) -> SequenceState:
        """A resident request."""
        return self._resident[ticket]

    def accept(self, message: StepJobs, jobs: list[StepJob] | None = None) -> None:
        """Apply a message: drop requests, open new ones, queue their jobs. A superseded scheduler's is refused.

        `jobs` are the message's, if they have been read already. Raises: BadInput if its columns do not fit together.
        """
        jobs = read_jobs(message) if jobs is None else jobs
        if message.epoch < self._epoch:
            log.warning("step jobs of a superseded scheduler refused", epoch=message.epoch, current=self._epoch)
            return
        if message.epoch > self._epoch:
            self._epoch = message.epoch
            self._reset()
        if message.forget_below:  # the scheduler may count the iterations from 1 again
            self._last_batch = 0
        self._drop(tickets_to_evict(message, self._resident))
        refused = {state.ticket for state in message.states if not self._open(state)}
        self._queue.extend(job for job in jobs if job.ticket not in refused)

    def iterate(self) -> StepResults | None:
        """Run one iteration. Returns: its message; None as `run_iteration`."""
        result = self.run_iteration()
        return None if result is None else result.message()

    def run_iteration(self) -> IterationResult | None:
        """Run one batch of waiting jobs. Returns: None if nothing ran and nothing is to be reported."""
        outcome: StepOutcome | None = None
        picked: list[tuple[Part, StepJob]] = []
        failed_before = 0
        while outcome is None:
            started = time.perf_counter()
            picked = self._next_batch()
            if not picked:
                break
            picked.sort(key=lambda pair: pair[0].sort_key)
            if (batch := self._pack(picked)) is None:
                continue
            self.batch_tokens = len(batch.tokens)
            failed_before = len(self._report.failures)  # jobs that are not in the batch
            with suppress(torch.OutOfMemoryError):
                outcome = self._run_batch([part for part, _ in picked], batch)
            if outcome is None:  # handled here since the caught error keeps the forward's tensors alive
                self._shrink(picked)
            else:
                self._limit.ran()
        report, self._report = self._report, StepReport()
        if outcome is None and not (report.missing or report.failures):
            return None
        latency_s = time.perf_counter() - started
        failed = {failure.ticket for failure in report.failures[failed_before:]}
        jobs = [job for _, job in picked if job.ticket not in failed]
        return IterationResult(self._instance_id, self._epoch, outcome, jobs, report, latency_s)

    def _pack(self, picked: list[tuple[Part, StepJob]]) -> ForwardBatch | None:
        """The batch of these parts, without moves. Returns: None if the form, the tokens or the fields of a request
        raise an error, which fails that request alone; the others wait again. Raises: the error if it is of none."""
        try:
            return pack([part for part, _ in picked], self.config)
        except Exception:
            faulty = set[int]()
            for part, job in picked:
                try:
                    pack([part], self.config)
                except Exception as error:
                    faulty.add(job.ticket)
                    self._fault(job.ticket, error)
            if not faulty:
                raise
        self._queue.extendleft(job for _, job in reversed(picked) if job.ticket not in faulty)
        return None

    def _fault(self, ticket: int, error: Exception) -> None:
        """Fail one request for an unexpected error."""
        log.error("a request raised an error", ticket=ticket, exc_info=error)
        self.num_faults += 1
        self._report.fail(ticket, f"the instance cannot serve this request: {error!r}")

    def _run_batch(self, parts: list[Part], batch: ForwardBatch) -> StepOutcome:
        if any(part.sequence.thresholds_to_repeat for part in parts):
            parts = [self._repeat_steps(part) for part in parts]
            batch = pack(parts, self.config)
        self._rebuild_caches([part for part in parts if part.rebuilds])
        batches = self._read(parts, replace(batch, moves=self._cache.take_moves()))
        for ran in batches:
            write_tokens(ran)
            self._report.add(ran.report)
            self._cache.store(part.sequence for part in ran.parts)
        return joined([ran.outcome for ran in batches])

    def _read(self, parts: list[Part], batch: ForwardBatch) -> list[RanBatch]:
        """Run a batch and read its predictions. If that raises an error, each part runs again alone, and a request for
        which it raises an error alone fails. Returns: the batches that were read."""
        ran = RanBatch(parts, batch, self._runner.run(batch), self.config.mask_token_id)
        try:
            for read in READERS:
                read(ran)
        except Exception as error:
            if len(parts) > 1:
                return [ran for part in parts for ran in self._read([part], pack([part], self.config))]
            self._fault(parts[0].sequence.ticket, error)
            return []
        return [ran]

    def _repeat_steps(self, part: Part) -> Part:
        """Run the steps that the request's current canvas had elsewhere, so that it has the same draft here."""
        sequence, left = part.sequence, part.sequence.thresholds_to_repeat
        while left:
            ran = self._runner.run(pack([part], self.config, self._cache.take_moves()))
            assert sequence.draft is not None, "it is fed"
            sequence.draft = sequence.draft.after(ran, slice(None), left[0])
            left.pop(0)
            part = replace(part, start=sequence.block_range(part.block)[0])  # the text before it is cached now
        return part

    def _rebuild_caches(self, parts: list[Part]) -> None:
        """Fill the caches of requests that moved here within a block. The predictions are those of an earlier step."""
        if not parts:
            return
        rebuilt = sorted((rebuild_part(part, self.config) for part in parts), key=lambda part: part.sort_key)
        self._runner.run(pack(rebuilt, self.config, self._cache.take_moves()))

    def _next_batch(self) -> list[tuple[Part, StepJob]]:
        """Pick the jobs of the next iteration; if none of its jobs can run, those of the iteration after it."""
        batch = max(self._last_batch + 1, min((job.batch for job in self._queue), default=0))
        while self._queue:
            if picked := self._pick(batch):
                self._last_batch = batch
                return picked
            later = [job.batch for job in self._queue if job.batch > batch]
            if not later:
                break
            batch = min(later)
        return []

    def _pick(self, batch: int) -> list[tuple[Part, StepJob]]:
        """Pick waiting jobs of this iteration and earlier ones, in order, one per request, within the limits and the
        cache's room."""
        picked, later = list[tuple[Part, StepJob]](), deque[StepJob]()
        busy, tokens = set[int](), 0
        for job in self._queue:
            is_full = len(picked) == self._max_requests or tokens > self._limit.tokens
            if is_full or job.batch > batch or job.ticket in busy:
                later.append(job)
            elif (sequence := self._runnable(job)) is not None:
                busy.add(job.ticket)
                part = self._part(job, sequence)
                tokens += part.max_tokens if part else 0
                if part and (tokens <= self._limit.tokens or not picked):
                    picked.append((part, job))
                else:
                    later.append(job)
        self._queue = later
        return picked

    def _part(self, job: StepJob, sequence: SequenceState) -> Part | None:
        """The job's part of the batch; None while the request waits for its pattern or for room in the cache."""
        if (sequence.pattern and sequence.constraint is None) or not self._cache.reserve(sequence, job.block):
            return None
        sequence.begin_draft(job.block, self.config.vocab_size)
        return part_for(job, sequence, self.mode, self.config)

    def _runnable(self, job: StepJob) -> SequenceState | None:
        """The request of this job; None if the job cannot run: unknown request, done before, obsolete or invalid."""
        sequence = self._resident.get(job.ticket)
        if sequence is None:
            self._report.missing.append(job.ticket)
            return None
        if job.step <= sequence.last_step:
            return None
        try:
            check_job(job, sequence)
            self._cache.check(sequence)
            self._constrain(sequence, job.block)
        except BadInput as error:
            self._report.fail(job.ticket, error.message, error.field)
        except RetryLater as error:
            self._report.fail(job.ticket, str(error))
        except Exception as error:
            self._fault(job.ticket, error)
        else:
            return None if is_obsolete(job, sequence, self.config) else sequence
        return None

    def _constrain(self, sequence: SequenceState, block: int) -> None:
        """Attach the request's pattern, once it is compiled. Raises: BadInput if it cannot be served; RetryLater if it
        cannot be compiled now."""
        if not sequence.pattern or sequence.constraint is not None:
            return
        if self._patterns is None:
            raise BadInput("this instance serves no patterns", "pattern")
        if sequence.compiling is None:
            sequence.compiling = self._patterns.find(sequence.pattern)
        if sequence.compiling.done():
            compiled = sequence.compiling.result()
            constraint = PatternConstraint(compiled, sequence.text_tokens, self.config.mask_token_id)
            constraint.check(sequence.output, *sequence.output_range(block))
            sequence.constraint = constraint

    def _shrink(self, picked: list[tuple[Part, StepJob]]) -> None:
        """After an out-of-memory error: run the jobs in smaller batches, or fail a request that is too large alone."""
        tokens = sum(part.max_tokens for part, _ in picked)
        log.warning("out of device memory", batch_tokens=tokens, requests=len(picked))
        if len(picked) == 1:
            self._report.fail(picked[0][1].ticket, f"a step of {tokens} tokens does not fit in the device's memory")
            return
        self._limit.exceeded(tokens)
        self._queue.extendleft(job for _, job in reversed(picked))

    def _open(self, state: RequestState) -> bool:
        """Hold a request. Returns: whether its state is valid."""
        if state.ticket in self._resident:  # out of date: it moved away and back, and the drop in between was lost
            self._drop([state.ticket])
        try:
            self._resident[state.ticket] = open_sequence(state, self.config)
        except BadInput as error:
            field = error.field if error.field in Request.__struct_fields__ else None
            self._report.fail(state.ticket, error.message, field)
            return False
        except Exception as error:
            self._fault(state.ticket, error)
            return False
        return True

    def _drop(self, tickets: list[int]) -> None:
        if not tickets:
            return
        for ticket in tickets:
            sequence = self._resident.pop(ticket, None)
            if sequence is not None:
                self._cache.evict(sequence)
        dropped = set(tickets)
        self._queue = deque(job for job in self._queue if job.ticket not in dropped)

    def _reset(self) -> None:
        self._drop(list(self._resident))
        self._queue.clear()
        self._last_batch = 0
        self._report = StepReport()
