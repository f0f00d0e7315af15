"""Decodes requests in one process without a bus: drives an engine as the scheduler does, and records the trace."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from services.worker.engine.cache_mode import CacheMode, check_mode
from services.worker.engine.engine import Engine, EngineLimits
from services.worker.engine.step_jobs import StepJob
from services.worker.model.families import ModelConfig
from services.worker.model.model_runner import ModelRunner
from services.worker.patterns.pattern_cache import PatternCompiler
from shared.arrays import Float32, Int32, pack_int32, pack_int64, unpack_float32, unpack_int32, unpack_int64
from shared.bus import codec
from shared.edits import NO_EDITS, ends_block
from shared.errors import BadInput
from shared.messages.steps import MAX_POST_STEPS, RequestState, StepJobs, StepKind, StepResults


class CaseRequest(msgspec.Struct, frozen=True):
    """One prompt of a CASE.json."""

    id: str
    prompt_ids: list[int]
    pattern: str = ""  # as in Request


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
    """One running request. Shapes: output int32 [O], in whole blocks, confidence_stats float32 [5] of each step."""

    request: CaseRequest
    output: Int32  # masks at first
    block_length: int
    threshold_of: Callable[[int], float]  # of each step
    caches: bool = True  # whether steps use the KV cache
    is_aligned: bool = False  # of a block-causal model: blocks lie on a grid of absolute positions
    eos_token_id: int | None = None  # no block follows one that contains this token
    edits: EditRule | None = None
    text_tokens: int = 0  # the most of a text with a pattern; 0: those of the output
    blocks_ended: int = 0  # with edits
    post_steps: int = 0  # of the current block: those that began without masks, with edits
    mask_id: int = field(init=False)
    unmasked: int = 0  # tokens
    steps: list[TraceStep] = field(default_factory=list)
    confidence_stats: list[Float32] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.mask_id = int(self.output[0])

    @property
    def block(self) -> int:
        return self.blocks_ended if self.edits else self._known // self.block_length

    @property
    def kind(self) -> StepKind:
        has_cache = self.unmasked > 0 if self.is_aligned else self._known % self.block_length > 0
        return StepKind.CACHE if self.caches and has_cache else StepKind.RECOMPUTE

    @property
    def kind_name(self) -> str:
        return "denoise" if self.is_aligned else self.kind.name.lower()

    @property
    def _known(self) -> int:
        """The tokens that are not masked, from the start of the first block on."""
        return self.unmasked + (len(self.request.prompt_ids) % self.block_length if self.is_aligned else 0)

    @property
    def has_ended(self) -> bool:
        if self._known % self.block_length or (self.edits and self._known > self.blocks_ended * self.block_length):
            return False
        return self.unmasked == len(self.output) or self.eos_token_id in self.output[: self.unmasked].tolist()

    def state(self, ticket: int) -> RequestState:
        prompt = self.request.prompt_ids
        canvas = pack_int32([*prompt, *self.output])
        return RequestState(
            ticket=ticket,
            request_id=self.request.id,
            prompt_length=len(prompt),
            block_length=self.block_length,
            canvas=canvas,
            edit_threshold=self.edits.threshold if self.edits else NO_EDITS,
            max_post_steps=self.edits.max_post_steps if self.edits else MAX_POST_STEPS,
            pattern=self.request.pattern,
            text_tokens=self.text_tokens,
        )

    def write(self, positions: list[int], tokens: list[int]) -> None:
        """Write the tokens of a step. With edits, some positions may have had tokens before."""
        began_without_masks = self._known == (self.blocks_ended + 1) * self.block_length
        self.unmasked += int(np.count_nonzero(self.output[positions] == self.mask_id))
        self.output[positions] = tokens
        if self.edits and began_without_masks:
            self.post_steps += 1
            if ends_block(len(positions), self.post_steps, self.edits.max_post_steps):
                self.blocks_ended, self.post_steps = self.blocks_ended + 1, 0

    def job(self, ticket: int) -> StepJob:
        threshold = float(np.float32(self.threshold_of(len(self.steps))))  # as in a message
        return StepJob(ticket, len(self.steps), self.block, threshold, self.kind)


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
    max_requests: int | None = None,
    patterns: PatternCompiler | None = None,
) -> list[RequestTrace]:
    """Decode requests together, at most `max_requests` per iteration (None: all).

    `on_tokens` receives the number of tokens that each iteration unmasked; `patterns` compiles those of the requests.
    Raises: BadInput if a request cannot be run.
    """
    options.check(runner.config)
    for request in requests:
        check_request(request, runner.config)
    decodes = [_decode(request, options, runner.config) for request in requests]
    fed = sum(len(decode.request.prompt_ids) + len(decode.output) for decode in decodes)
    limits = EngineLimits(tokens=fed, requests=max_requests or len(requests))
    engine = Engine(runner, options.mode, limits, "decode", patterns=patterns)
    unmasked = 0
    for _ in run_iterations(engine, decodes):
        before, unmasked = unmasked, sum(decode.unmasked for decode in decodes)
        on_tokens(unmasked - before)
    length = options.output_length
    return [
        RequestTrace(d.request.id, d.output[: min(d.unmasked, length)].tolist(), len(d.steps), d.steps) for d in decodes
    ]


def _decode(request: CaseRequest, options: DecodeOptions, config: ModelConfig) -> Decode:
    """A block-causal model decodes to the end of the last block."""
    length = options.output_length
    if config.is_block_causal:
        length += -(len(request.prompt_ids) + length) % options.block_length
    return Decode(
        request,
        np.full(length, config.mask_token_id, dtype=np.int32),
        options.block_length,
        lambda _: options.threshold,
        caches=options.mode is not CacheMode.NONE,
        is_aligned=config.is_block_causal,
        eos_token_id=config.eos_token_id if options.stop_at_eos else None,
        edits=options.edits,
        text_tokens=options.output_length,
    )


def run_iterations(engine: Engine, decodes: Sequence[Decode]) -> Iterator[tuple[StepResults, list[Decode]]]:
    """Run these requests to their ends. Yields: the results of each iteration, and the requests that it ended.

    Raises: BadInput if a request cannot be run.
    """
    ready, left = list(range(len(decodes))), len(decodes)
    while left:
        states = [decodes[ticket].state(ticket) for ticket in ready if not decodes[ticket].steps]
        engine.accept(StepJobs(epoch=0, states=states), [decodes[ticket].job(ticket) for ticket in ready])
        results = engine.iterate()
        assert results is not None, "every job is answered"
        for failure in results.failures:
            raise BadInput(f"request {decodes[failure.ticket].request.id}: {failure.message}")
        ran = unpack_int64(results.tickets).tolist()
        _apply(results, [decodes[ticket] for ticket in ran])
        ready = [ticket for ticket in ran if not decodes[ticket].has_ended]
        left -= len(ran) - len(ready)
        yield results, [decodes[ticket] for ticket in ran if ticket not in ready]
    engine.accept(StepJobs(epoch=0, drops=pack_int64(range(len(decodes)))))


def _apply(results: StepResults, ran: Sequence[Decode]) -> None:
    """Add the tokens of an iteration to the requests that ran."""
    cuts = np.cumsum(unpack_int32(results.counts))[:-1]
    columns = (
        np.split(unpack_int32(results.positions), cuts),
        np.split(unpack_int32(results.tokens), cuts),
        np.split(unpack_float32(results.confidences), cuts),
    )
    stats = unpack_float32(results.confidence_stats).reshape(-1, 5)
    for decode, own_stats, *own in zip(ran, stats, *columns, strict=True):
        positions, tokens, confidences = (column.tolist() for column in own)
        decode.steps.append(
            TraceStep(len(decode.steps), decode.kind_name, decode.block, positions, tokens, confidences)
        )
        decode.confidence_stats.append(own_stats)
        decode.write(positions, tokens)
