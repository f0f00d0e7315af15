"""Decodes requests in one process without a bus: drives an engine as the scheduler does, and records the trace."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from services.worker.engine.cache_mode import CacheMode, check_mode
from services.worker.engine.engine import Engine, EngineLimits
from services.worker.engine.sequence_state import NO_IDS, SequenceState
from services.worker.engine.step_jobs import StepJob
from services.worker.engine.step_results import IterationResult
from services.worker.model.families import ModelConfig
from services.worker.model.model_runner import ModelRunner
from services.worker.patterns.pattern_cache import PatternCompiler
from shared.arrays import Float32, Int32, pack_int32, pack_int64
from shared.bus import codec
from shared.edits import NO_EDITS
from shared.errors import BadInput
from shared.messages.requests import Sampling
from shared.messages.steps import MAX_POST_STEPS, RequestState, StepJobs, StepKind


class CaseRequest(Sampling, frozen=True):
    """One prompt of a CASE.json. Without a temperature, as in Request, decoding is greedy."""

    id: str
    prompt_ids: list[int]
    pattern: str = ""  # as in Request
    seed: int = 0


class Case(msgspec.Struct, frozen=True):
    """CASE.json."""

    requests: list[CaseRequest]


class TraceStep(msgspec.Struct, frozen=True):
    """One step of a TRACE.json. Positions count from the start of the output."""

    step: int
    kind: str  # recompute or cache; denoise of a block-causal model
    block: int
    positions: list[int]
    tokens: list[int]
    confidences: list[float]


class RequestTrace(msgspec.Struct, frozen=True):
    """One request of a TRACE.json."""

    id: str
    output_ids: list[int]  # of the blocks that were decoded
    nfe: int  # forwards
    steps: list[TraceStep]


class Trace(msgspec.Struct, frozen=True):
    """TRACE.json."""

    requests: list[RequestTrace]


@dataclass(frozen=True, slots=True)
class EditRule:
    """LLaDA2.1's second threshold (`shared.edits`)."""

    threshold: float  # a token changes to one whose probability is higher
    max_post_steps: int = MAX_POST_STEPS

    def __post_init__(self) -> None:
        if not 0.0 <= self.threshold < 1.0:
            raise BadInput(f"the threshold of edits must be in [0, 1), got {self.threshold}", "edit_threshold")


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """The decoding options of all requests."""

    mode: CacheMode
    threshold: float
    block_length: int  # tokens
    output_length: int  # tokens, a multiple of block_length unless the model is block-causal
    stop_at_eos: bool = False  # decode no block after one that contains the end of text
    edits: EditRule | None = None  # None: no token changes

    def __post_init__(self) -> None:
        if not 0.0 <= self.threshold <= 1.0:
            raise BadInput(f"the threshold must be in [0, 1], got {self.threshold}", "threshold")
        if self.block_length < 1 or self.output_length < 1:
            raise BadInput("the lengths of blocks and output must be at least 1", "output_length")

    def check(self, config: ModelConfig) -> None:
        """Raises: BadInput if a model cannot decode with these options."""
        check_mode(self.mode, config)
        if self.edits is not None and not config.can_edit:
            raise BadInput(f"{config.family} models do not change tokens; llada2 models do", "edit_threshold")
        if not config.is_block_causal and self.output_length % self.block_length:
            lengths = f"{self.output_length} is not a multiple of {self.block_length}"
            raise BadInput(f"the output length must be whole blocks: {lengths}", "output_length")


@dataclass(slots=True)
class Decode:
    """One request, and what its steps did. Shapes: confidence_stats float32 [5] of each step."""

    request: CaseRequest
    output_length: int  # tokens; a block-causal model decodes to the end of the last block
    block_length: int
    threshold_of: Callable[[int], float]  # of each step
    eos_token_id: int | None = None  # no block follows one that contains this token
    edits: EditRule | None = None
    steps: list[TraceStep] = field(default_factory=list)
    confidence_stats: list[Float32] = field(default_factory=list)
    block: int = 0  # of the next step
    output: Int32 = field(default_factory=lambda: NO_IDS)  # of the blocks that have ended
    has_ended: bool = False

    def state(self, ticket: int, config: ModelConfig) -> RequestState:
        """The request at its start."""
        prompt, length = self.request.prompt_ids, self.output_length
        if config.is_block_causal:
            length += -(config.is_aligned * len(prompt) + length) % self.block_length
        return RequestState(
            ticket=ticket,
            request_id=self.request.id,
            prompt_length=len(prompt),
            block_length=self.block_length,
            canvas=pack_int32([*prompt, *[config.mask_token_id] * length]),
            edit_threshold=self.edits.threshold if self.edits else NO_EDITS,
            max_post_steps=self.edits.max_post_steps if self.edits else MAX_POST_STEPS,
            pattern=self.request.pattern,
            text_tokens=self.output_length,
            seed=self.request.seed,
            **self.request.own_fields(),
        )

    def job(self, ticket: int, config: ModelConfig, mode: CacheMode) -> StepJob:
        """The next step."""
        threshold = float(np.float32(self.threshold_of(len(self.steps))))  # as in a message
        has_cache = bool(self.steps) and (config.is_block_causal or self.steps[-1].block == self.block)
        kind = StepKind.CACHE if has_cache and mode is not CacheMode.NONE else StepKind.RECOMPUTE
        return StepJob(ticket, len(self.steps), self.block, threshold, kind)

    def move_on(self, sequence: SequenceState, config: ModelConfig) -> None:
        """After a step: find the next block on the canvas, or end."""
        masks = np.flatnonzero(sequence.output == config.mask_token_id)
        before = self.block
        if sequence.edits:
            self.block = sequence.ended_blocks
        else:
            self.block = sequence.block_of(int(masks[0])) if len(masks) else sequence.num_blocks
        if self.block > before:
            ended = sequence.output[: sequence.output_range(self.block)[0]]
            self.output = ended[: self.output_length].copy()
            self.has_ended = len(ended) == len(sequence.output) or self.eos_token_id in ended.tolist()


def read_case(path: Path) -> list[CaseRequest]:
    """The requests of a CASE.json. Raises: BadInput."""
    try:
        requests = codec.decode(path.read_bytes(), Case).requests
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from None
    except BadInput as error:
        raise BadInput(f"{path}: {error.message}") from None
    if not requests:
        raise BadInput(f"{path} has no requests")
    return requests


def check_request(request: CaseRequest, config: ModelConfig) -> None:
    """Raises: BadInput, which names the request, if its prompt is invalid."""
    invalid = next((i for i in request.prompt_ids if not 0 <= i < config.vocab_size or i == config.mask_token_id), None)
    if not request.prompt_ids:
        raise BadInput(f"request {request.id}: prompt_ids must not be empty", "prompt_ids")
    if invalid is not None:
        allowed = f"0..{config.vocab_size - 1} and not the mask"
        raise BadInput(f"request {request.id}: prompt_ids must be in {allowed}, got {invalid}", "prompt_ids")


def decode_together(
    requests: Sequence[CaseRequest],
    runner: ModelRunner,
    options: DecodeOptions,
    on_tokens: Callable[[int], object] = lambda _: None,
    *,
    patterns: PatternCompiler | None = None,
) -> list[RequestTrace]:
    """Decode requests together. `on_tokens` receives the number of output tokens in the blocks that each iteration
    ended; `patterns` compiles those of the requests. Raises: BadInput if a request cannot be run.
    """
    options.check(runner.config)
    for request in requests:
        check_request(request, runner.config)
    eos_token_id = runner.config.eos_token_id if options.stop_at_eos else None
    sizes, threshold_of = (options.output_length, options.block_length), lambda _: options.threshold
    decodes = [Decode(request, *sizes, threshold_of, eos_token_id, options.edits) for request in requests]
    fed = sum(len(decode.request.prompt_ids) + sum(sizes) for decode in decodes)
    limits = EngineLimits(tokens=fed, requests=len(requests))
    engine = Engine(runner, options.mode, limits, "decode", patterns=patterns)
    before = 0
    for _ in run_iterations(engine, decodes):
        done = sum(len(decode.output) for decode in decodes)
        on_tokens(done - before)
        before = done
    return [RequestTrace(d.request.id, d.output.tolist(), len(d.steps), d.steps) for d in decodes]


def run_iterations(engine: Engine, decodes: Sequence[Decode]) -> Iterator[tuple[IterationResult, list[Decode]]]:
    """Run these requests to their ends. Yields: the result of each iteration, and the requests that it ended.

    Raises: BadInput if a request cannot be run.
    """
    config, ready, left = engine.config, list(range(len(decodes))), len(decodes)
    while left:
        states = [decodes[ticket].state(ticket, config) for ticket in ready if not decodes[ticket].steps]
        jobs = [decodes[ticket].job(ticket, config, engine.mode) for ticket in ready]
        engine.accept(StepJobs(epoch=0, states=states), jobs)
        result = engine.run_iteration()
        assert result is not None, "every job is answered"
        for failure in result.report.failures:
            raise BadInput(f"request {decodes[failure.ticket].request.id}: {failure.message}")
        ran = _apply(engine, result, decodes)
        ready = [job.ticket for job in result.jobs if not decodes[job.ticket].has_ended]
        left -= len(ran) - len(ready)
        yield result, [decode for decode in ran if decode.has_ended]
    engine.accept(StepJobs(epoch=0, drops=pack_int64(range(len(decodes)))))


def _apply(engine: Engine, result: IterationResult, decodes: Sequence[Decode]) -> list[Decode]:
    """Add the steps of an iteration to the requests that ran. Returns: these requests."""
    outcome = result.outcome
    assert outcome is not None, "the requests are valid"
    columns = outcome.positions, outcome.tokens, outcome.confidences.astype(np.float32)
    split = zip(*(np.split(column, np.cumsum(outcome.counts)[:-1]) for column in columns), strict=True)
    for job, stats, own in zip(result.jobs, outcome.stats, split, strict=True):
        decode = decodes[job.ticket]
        kind = "denoise" if engine.config.is_block_causal else StepKind(job.kind).name.lower()
        decode.steps.append(TraceStep(job.step, kind, job.block, *(column.tolist() for column in own)))
        decode.confidence_stats.append(stats)
        decode.move_on(engine.sequence(job.ticket), engine.config)
    return [decodes[job.ticket] for job in result.jobs]
