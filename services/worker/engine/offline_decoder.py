"""Decodes requests in one process without a bus: drives an engine as the scheduler does, and records the trace."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from services.worker.cache.cache_mode import CacheMode
from services.worker.engine.engine import Engine, EngineLimits
from services.worker.engine.step_jobs import StepJob
from services.worker.model.families import ModelConfig
from services.worker.model.model_runner import ModelRunner
from shared.arrays import Int32, pack_int32, unpack_float32, unpack_int32, unpack_int64
from shared.errors import BadInput
from shared.messages.steps import RequestState, StepJobs, StepKind, StepResults


class CaseRequest(msgspec.Struct, frozen=True):
    """One prompt of a CASE.json."""

    id: str
    prompt_ids: list[int]


class Case(msgspec.Struct, frozen=True):
    """CASE.json."""

    requests: list[CaseRequest]


class TraceStep(msgspec.Struct, frozen=True):
    """One step of a TRACE.json. Positions count from the start of the output."""

    step: int
    kind: str  # recompute or cache
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
class DecodeOptions:
    """The decoding options of all requests."""

    mode: CacheMode
    threshold: float
    block_length: int  # tokens
    output_length: int  # tokens, a multiple of block_length
    stop_at_eos: bool = False  # decode no block after one that contains the end of text

    def __post_init__(self) -> None:
        if not 0.0 <= self.threshold <= 1.0:
            raise BadInput(f"the threshold must be in [0, 1], got {self.threshold}", "threshold")
        if self.block_length < 1 or self.output_length < 1 or self.output_length % self.block_length:
            lengths = f"{self.output_length} is not a multiple of {self.block_length}"
            raise BadInput(f"the output length must be whole blocks: {lengths}", "output_length")


@dataclass(slots=True)
class _Decode:
    """One running request. Shapes: output int32 [O]."""

    ticket: int
    request: CaseRequest
    output: Int32
    steps: list[TraceStep] = field(default_factory=list)
    block: int = 0
    ended: bool = False


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
) -> list[RequestTrace]:
    """Decode requests together, at most `max_requests` per iteration (None: all).

    `on_tokens` receives the number of tokens that each iteration unmasked. Raises: BadInput if a request cannot be run.
    """
    for request in requests:
        check_request(request, runner.config)
    fed = sum(len(request.prompt_ids) + options.output_length for request in requests)
    engine = Engine(runner, options.mode, EngineLimits(tokens=fed, requests=max_requests or len(requests)), "decode")
    mask = runner.config.mask_token_id
    decodes = [
        _Decode(ticket, request, np.full(options.output_length, mask, dtype=np.int32))
        for ticket, request in enumerate(requests)
    ]
    ready, left = decodes, len(decodes)
    while left:
        new = [_state(decode, options) for decode in ready if not decode.steps]
        engine.accept(StepJobs(epoch=0, states=new), [_job(decode, options) for decode in ready])
        results = engine.iterate()
        assert results is not None, "every job is answered"
        if results.failures:
            failure = results.failures[0]
            raise BadInput(f"request {requests[failure.ticket].id}: {failure.message}")
        ran = [decodes[ticket] for ticket in unpack_int64(results.tickets).tolist()]
        on_tokens(_apply(results, ran, runner, options))
        ready = [decode for decode in ran if not decode.ended]
        left -= len(ran) - len(ready)
    return [
        RequestTrace(d.request.id, d.output[: d.block * options.block_length].tolist(), len(d.steps), d.steps)
        for d in decodes
    ]


def _job(decode: _Decode, options: DecodeOptions) -> StepJob:
    threshold = float(np.float32(options.threshold))  # as in a message
    return StepJob(decode.ticket, len(decode.steps), decode.block, threshold, _kind(decode, options))


def _kind(decode: _Decode, options: DecodeOptions) -> StepKind:
    begun = bool(decode.steps) and decode.steps[-1].block == decode.block
    return StepKind.CACHE if begun and options.mode is not CacheMode.NONE else StepKind.RECOMPUTE


def _state(decode: _Decode, options: DecodeOptions) -> RequestState:
    return RequestState(
        ticket=decode.ticket,
        request_id=decode.request.id,
        prompt_length=len(decode.request.prompt_ids),
        block_length=options.block_length,
        canvas=pack_int32([*decode.request.prompt_ids, *decode.output]),
    )


def _apply(results: StepResults, ran: list[_Decode], runner: ModelRunner, options: DecodeOptions) -> int:
    """Add the tokens of an iteration to the requests that ran. Returns: their number."""
    cuts = np.cumsum(unpack_int32(results.counts))[:-1]
    columns = (
        np.split(unpack_int32(results.positions), cuts),
        np.split(unpack_int32(results.tokens), cuts),
        np.split(unpack_float32(results.confidences), cuts),
    )
    for decode, positions, tokens, confidences in zip(ran, *columns, strict=True):
        kind = _kind(decode, options).name.lower()
        decode.output[positions] = tokens
        decode.steps.append(
            TraceStep(len(decode.steps), kind, decode.block, positions.tolist(), tokens.tolist(), confidences.tolist())
        )
        _end_block(decode, runner, options)
    return int(unpack_int32(results.counts).sum())


def _end_block(decode: _Decode, runner: ModelRunner, options: DecodeOptions) -> None:
    """Move to the next block if this one has no mask left."""
    start = decode.block * options.block_length
    block = decode.output[start : start + options.block_length]
    if (block == runner.config.mask_token_id).any():
        return
    decode.block += 1
    stops = options.stop_at_eos and bool((block == runner.config.eos_token_id).any())
    decode.ended = stops or decode.block * options.block_length == options.output_length
