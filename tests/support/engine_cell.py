"""A cell without a bus: the scheduler's core and workers' engines. The test delivers each message between them."""

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
import torch

from services.scheduler import events as ev
from services.scheduler.policies.dilaserve import DiLaServePolicy
from services.scheduler.policies.fixed import FixedThresholdPolicy
from services.scheduler.policies.migration import MigrationPolicy
from services.scheduler.policies.policy import Policy
from services.scheduler.state.fleet import Fleet
from services.scheduler.state.request_table import RequestTable
from services.scheduler.state.step_estimates import StepEstimates
from services.worker.cache.prefix_pages import NO_PREFIXES, PrefixSize
from services.worker.engine.cache_mode import CacheMode
from services.worker.engine.engine import Engine, EngineLimits
from services.worker.engine.step_jobs import MessageDeduplicator
from services.worker.model.families import ModelConfig, parse_config
from services.worker.model.forward_batch import ForwardBatch
from services.worker.model.model_runner import TokenPredictions, TopPredictions, rows_with_top_tokens, select
from shared.arrays import Bool, Float64, Int32, Int64, pack_int32, unpack_int32
from shared.edits import NO_EDITS
from shared.messages.checkpoints import Checkpoint
from shared.messages.instances import InstanceState
from shared.messages.requests import Request
from shared.messages.steps import MAX_POST_STEPS, StepJobs, StepResults
from shared.pinned import FREE, free_positions, protected_tokens
from tests.builders import registered, scheduler_core
from tests.support.random_model import LLADA, MASK_ID, SDAR

END_ID = 1
STOP_ID = 2  # the token of the stop string "."
FIRST_ID, LAST_ID = 10, 59  # the ordinary tokens' ids
PROMPT_ID = 5
THRESHOLD, EDIT_THRESHOLD = 0.75, 0.5
BLOCK = 4
STEP_TIMEOUT_S = 10.0
MAX_REQUESTS = 4  # per instance
# Recompute steps have a base, so that instances run them apart from cache steps.
PROFILE = "tp,batch_tokens,step_kind,latency_ms\n" + "".join(
    f"1,{tokens},{kind},{base_ms + tokens}\n"
    for kind, base_ms in (("recompute", 20), ("cache", 5))
    for tokens in (4, 32, 1024)
)


@dataclass(frozen=True, slots=True)
class Text:
    """The model's output for one request. A token depends on its position alone, with edits also on the current token;
    `number` is also the seed."""

    number: int
    blocks: int
    end_at: int | None = None  # position of an end-of-text token
    stop_at: int | None = None  # position of a token that is the request's stop string
    is_aligned: bool = False  # of a block-causal model: the first block begins within the prompt
    pinned_positions: frozenset[int] = frozenset()  # of a block-causal model, only those from the start count
    has_edits: bool = False

    @property
    def length(self) -> int:
        return self.blocks * BLOCK - self.offset

    @property
    def pinned(self) -> list[int]:
        """As in Request. At least the last token is free."""
        positions = {position for position in self.pinned_positions if position < self.length - 1}
        if self.is_aligned:
            positions = {position for position in positions if positions.issuperset(range(position))}
        last = max(positions, default=-1)
        return [self.token(position) if position in positions else FREE for position in range(last + 1)]

    @property
    def name(self) -> str:
        return f"r{self.number}"

    @property
    def prompt_length(self) -> int:
        return 1 + self.number % 3

    @property
    def offset(self) -> int:
        """The tokens of the prompt in the first block."""
        return self.prompt_length % BLOCK if self.is_aligned else 0

    def token(self, position: int) -> int:
        if position == self.end_at:
            return END_ID
        if position == self.stop_at:
            return STOP_ID
        return FIRST_ID + hash((self.number, position)) % (LAST_ID - FIRST_ID + 1)

    def stages(self, position: int) -> list[int]:
        """The tokens that a position takes one after another, the first one from the mask, as far as steps reach."""
        token, drawn = self.token(position), hash((self.number, position, 1)) % 100
        if not self.has_edits:
            return [token]
        drafts = [FIRST_ID + (token - FIRST_ID + i) % (LAST_ID - FIRST_ID + 1) for i in range(1, drawn % 3 + 1)]
        if drafts and drawn < 20 and token != END_ID:
            drafts[0] = END_ID
        return [*drafts, token]

    def next_stage(self, position: int, stage: int) -> int:
        """Some positions change to and fro."""
        last = len(self.stages(position)) - 1
        if stage < last:
            return stage + 1
        return last - 1 if last and hash((self.number, position, 2)) % 8 == 0 else last

    def final(self, position: int) -> int:
        """The token when its block has ended."""
        return self._decoded(position)[0]

    def final_confidence(self, position: int) -> float:
        return self._decoded(position)[1]

    def _decoded(self, position: int) -> tuple[int, float]:
        return decode_block(self, (position + self.offset) // BLOCK)[0][position]

    def confidence(self, position: int, stage: int = 0) -> float:
        return (hash((position, self.number, stage) if stage else (position, self.number)) % 1000) / 1000

    def passes(self, position: int) -> bool:
        """Whether the confidence reaches the threshold; that of a block-causal model must exceed it."""
        confidence = self.confidence(position)
        return confidence > THRESHOLD if self.is_aligned else confidence >= THRESHOLD

    def reference(self) -> tuple[list[int], int]:
        """The output of a plain decoding loop, and its number of steps."""
        output: list[int] = []
        steps = 0
        free = free_positions(pack_int32(self.pinned), self.length).tolist()
        for block in range(self.blocks):
            decoded, steps_of_block = decode_block(self, block)
            output += [token for token, _ in decoded.values()]
            steps += steps_of_block
            if steps_of_block and _ended(np.array(output), self.request):
                break
        end = next((position for position in free if position >= len(output)), self.length)
        return [self.final(position) for position in range(end)], steps

    @property
    def request(self) -> Request:
        stop = ["."] if self.stop_at is not None else []
        return Request(
            request_id=self.name,
            output_tokens=1,
            block_length=BLOCK,
            seed=self.number,
            stop=stop,
            stream=self.number % 2 == 1,
            logprobs=True,
            top_logprobs=self.number % 3,
            pinned=pack_int32(self.pinned),
        )

    def arrival(self, at_s: float, checkpoint: Checkpoint | None = None) -> ev.RequestArrived:
        prompt = np.full(self.prompt_length, PROMPT_ID, np.int32)
        offset = self.offset
        return ev.RequestArrived(
            self.request,
            prompt,
            self.length,
            5.0,
            at_s,
            self.name,
            checkpoint,
            block_offset=offset,
            edit_threshold=EDIT_THRESHOLD if self.has_edits else NO_EDITS,
        )


@cache
def decode_block(text: Text, block: int) -> tuple[dict[int, tuple[int, float]], int]:
    """The token and the confidence at each position of a block, by a plain decoding loop, and its number of steps."""
    free = free_positions(pack_int32(text.pinned), text.length).tolist()
    positions = range(max(block * BLOCK - text.offset, 0), (block + 1) * BLOCK - text.offset)
    found = {position: (text.token(position), text.confidence(position)) for position in positions}
    masks = [position for position in positions if position in free]
    stage = {position: 0 for position in positions if position not in masks}
    steps = post_steps = 0
    is_open = bool(masks)
    while is_open:
        began_without_masks = not masks
        following = (
            {position: text.next_stage(position, at) for position, at in stage.items()} if text.has_edits else {}
        )
        changes = {
            position: at
            for position, at in following.items()
            if at != stage[position] and text.confidence(position, at) > EDIT_THRESHOLD
        }
        best = max(masks, key=text.confidence, default=None)
        stage |= changes | {position: 0 for position in masks if text.passes(position) or position == best}
        masks = [position for position in masks if position not in stage]
        steps, post_steps = steps + 1, post_steps + began_without_masks
        is_open = bool(masks)
        if text.has_edits:
            is_open = not began_without_masks or (bool(changes) and post_steps < MAX_POST_STEPS)
    if text.has_edits:
        found = {p: (text.stages(p)[at], text.confidence(p, at)) for p, at in sorted(stage.items())}
    return found, steps


UNWRITTEN = -1, -1, True, None  # an entry of a region that no step has filled yet


class Poisoned(Exception):  # noqa: N818
    """A batch has a request that ends its instance."""


@dataclass
class ScriptedModel:
    """Predicts the tokens of the texts. Fails if a batch holds or reads from the cache another request's tokens."""

    texts: dict[int, Text]
    cache_tokens: int
    config: ModelConfig
    poison: frozenset[int] = frozenset()  # numbers of the texts whose steps fail
    is_small: bool = False  # whether two requests at once exceed the device's memory
    # Entry -> request and position of its keys, whether a token of their block was not final, and the output positions
    # that were masked in the whole text; None if only a part of it was computed.
    cached: dict[int, tuple[int, int, bool, frozenset[int] | None]] = field(default_factory=dict)

    def run(self, batch: ForwardBatch) -> TokenPredictions:
        if self.is_small and len(batch.seeds) > 1:
            raise torch.OutOfMemoryError("too large")
        if not self.poison.isdisjoint(batch.seeds.tolist()):
            raise Poisoned
        self._check(batch)
        owners = np.repeat(batch.seeds, batch.counts).tolist()
        at = [
            (self.texts[owner], int(position) - self.texts[owner].prompt_length)
            for owner, position in zip(owners, batch.candidates.tolist(), strict=True)
        ]
        predicted = [
            _predict(text, position, token) for (text, position), token in zip(at, batch.current.tolist(), strict=True)
        ]
        tokens: Int64 = np.array([token for token, _ in predicted], dtype=np.int64)
        confidences: Float64 = np.array([confidence for _, confidence in predicted])
        rows = rows_with_top_tokens(batch)
        others = np.arange(
            batch.top_logprobs.max()
        )  # the i-th alternative of a token t with probability p: t + i, p / 2^i
        top = TopPredictions(rows, tokens[rows, None] + others, confidences[rows, None] / 2.0**others)
        selected = select(tokens, confidences, batch, MASK_ID, is_strict=self.config.is_block_causal)
        return TokenPredictions(tokens, confidences, selected, top if len(rows) else None)

    def _check(self, batch: ForwardBatch) -> None:
        request = np.cumsum(np.diff(batch.key_starts, prepend=batch.key_starts[0]) != 0)  # [S], of each span
        span_owners = batch.seeds[request]
        owners = np.repeat(span_owners, batch.lengths).tolist()
        for owner, position, token in zip(owners, batch.positions.tolist(), batch.tokens.tolist(), strict=True):
            text = self.texts[owner]
            output_position = position - text.prompt_length
            expected = [PROMPT_ID] if output_position < 0 else text.stages(output_position)
            assert token in (*expected, MASK_ID), "a token of another text"
        if self.cache_tokens:
            for source, target, length in batch.moves:
                moved = {target + i: self.cached.get(source + i, UNWRITTEN) for i in range(length)}
                self.cached |= moved  # all are read first, since the two may overlap
            starts = np.cumsum(batch.lengths) - batch.lengths
            columns = (owners, batch.positions.tolist(), batch.tokens.tolist())
            is_open = [token != self._final(owner, position) for owner, position, token in zip(*columns, strict=True)]
            unfinished = np.repeat(np.logical_or.reduceat(is_open, starts), batch.lengths).tolist()
            masked = [
                self._masked(owner, batch.tokens[start : start + own]) if own == length else None
                for owner, start, own, length in zip(span_owners, starts, batch.lengths, batch.key_lengths, strict=True)
            ]
            of_span = np.arange(len(starts)).repeat(batch.lengths).tolist()
            for owner, position, entry, is_unfinished, span in zip(
                *columns[:2], batch.write_entries.tolist(), unfinished, of_span, strict=True
            ):
                self.cached[entry] = (owner, position, is_unfinished, masked[span])
            spans = (x.tolist() for x in (span_owners, batch.key_starts, batch.key_lengths, batch.lengths, starts))
            for owner, start, length, own, first in zip(*spans, strict=True):
                begins = int(batch.positions[first])
                for position in range(length):
                    computed_by, computed_at, is_unfinished, masked_then = self.cached[start + position]
                    assert computed_at >= 0, "keys of no token"
                    is_alike = computed_by == owner or (
                        not is_unfinished and self._beginning(computed_by, position) == self._beginning(owner, position)
                    )
                    assert is_alike, "keys of another request"
                    assert computed_at == position
                    is_earlier = self.config.is_block_causal and position < length - own
                    assert not (is_earlier and is_unfinished), "keys of an unfinished block"
                    is_kept = not self.config.is_block_causal and not begins <= position < begins + own
                    assert not is_kept or masked_then == self._free_from(owner, begins), "keys of another block's start"

    def _masked(self, owner: int, canvas: Int64) -> frozenset[int]:
        """The output positions that are masked in a whole text."""
        return frozenset((np.flatnonzero(canvas == MASK_ID) - self.texts[owner].prompt_length).tolist())

    def _free_from(self, owner: int, start: int) -> frozenset[int]:
        """The output positions that are masked when the block begins that starts at this position of the text."""
        text = self.texts[owner]
        free = free_positions(pack_int32(text.pinned), text.length)
        return frozenset(free[free >= start - text.prompt_length].tolist())

    def _final(self, owner: int, position: int) -> int:
        """The token of a text when its block has ended."""
        text = self.texts[owner]
        return PROMPT_ID if position < text.prompt_length else text.final(position - text.prompt_length)

    def _beginning(self, owner: int, position: int) -> list[int]:
        """The tokens of a text to the end of the block of this position."""
        return [self._final(owner, i) for i in range(position - position % BLOCK + BLOCK)]


def _predict(text: Text, position: int, current: int) -> tuple[int, float]:
    """The predicted token and its confidence."""
    stage = 0 if current == MASK_ID else text.next_stage(position, text.stages(position).index(current))
    return text.stages(position)[stage], text.confidence(position, stage)


class AnyBatch(FixedThresholdPolicy):
    """Chooses batches at random, as far as the protocol allows."""

    def select(self, rows: Int64, joined: Int64, table: RequestTable, fleet: Fleet, now_s: float) -> Bool:  # noqa: ARG002
        draws = np.random.default_rng([int(now_s * 100), *table.ticket[rows].tolist()]).random(len(rows))
        chosen: Bool = draws < 0.5
        for index in set(table.instance[rows].tolist()) - set(table.instance[joined].tolist()):
            of_instance = (table.instance[rows] == index).nonzero()[0]
            chosen[of_instance[draws[of_instance].argmin()]] = True
        return chosen


MakePolicy = Callable[[MigrationPolicy, StepEstimates], Policy]


def fixed(moves: MigrationPolicy, _estimates: StepEstimates) -> Policy:
    return FixedThresholdPolicy(THRESHOLD, moves)


def any_batch(moves: MigrationPolicy, _estimates: StepEstimates) -> Policy:
    return AnyBatch(THRESHOLD, moves)


def dilaserve(moves: MigrationPolicy, estimates: StepEstimates) -> Policy:
    """With one candidate, so that the outputs are those of `Text.reference`."""
    return DiLaServePolicy(candidates=np.array([THRESHOLD]), estimates=estimates, moves=moves)


class EngineCell:
    """Messages wait until the test delivers them; the test sets `now_s`."""

    def __init__(
        self, *, mode: CacheMode, lookahead: int, moves: MigrationPolicy, make_policy: MakePolicy = fixed
    ) -> None:
        """With the mode block, the model is block-causal."""
        self.mode, self.lookahead, self.moves = mode, lookahead, moves
        self._make_policy = make_policy
        self.now_s = 100.0
        self.epoch = 0
        self.poison: frozenset[int] = frozenset()
        self.texts: dict[int, Text] = {}
        self.models: dict[str, ScriptedModel] = {}
        self.engines: dict[str, Engine] = {}
        self.jobs: dict[str, deque[StepJobs]] = {}
        self.received: dict[str, tuple[MessageDeduplicator, list[StepJobs]]] = {}  # by instance, the delivered messages
        self.results: deque[StepResults] = deque()
        self.checkpoints: dict[str, Checkpoint] = {}
        self.finished: dict[str, ev.FinishRequest] = {}
        self.streamed: defaultdict[str, dict[int, int]] = defaultdict(dict)  # the final tokens by position
        self.unsettled: dict[str, Text] = {}
        self.restarted: set[str] = set()  # names of requests that began again after a quarantine, or may have
        self._prefixes = PrefixSize(BLOCK, 8) if mode is CacheMode.BLOCK else NO_PREFIXES
        self.start_scheduler()

    def start_scheduler(self) -> None:
        """Start a scheduler that knows only what the bus stores."""
        self.epoch += 1
        self.core = scheduler_core(
            lambda estimates: self._make_policy(self.moves, estimates),
            _ended,
            epoch=self.epoch,
            mask_token_id=MASK_ID,
            thresholds=(THRESHOLD,),
            tokens_per_step=(1.5,),
            caching=self.mode is not CacheMode.NONE,
            exact_cache=self.mode is CacheMode.BLOCK,
            lookahead=self.lookahead,
            end_ids=(END_ID,),
            step_timeout_s=STEP_TIMEOUT_S,
        )
        arrivals = [text.arrival(self.now_s, self.checkpoints.get(name)) for name, text in self.unsettled.items()]
        self.cycle([*arrivals, *(self.heartbeat(name) for name in self.engines)])

    def heartbeat(self, name: str, drain_s: float | None = None) -> ev.InstanceUpdated:
        """The event of a ready instance, or of one that drains for `drain_s` seconds."""
        state = InstanceState.READY if drain_s is None else InstanceState.DRAINING
        return registered(
            name,
            state=state,
            drain_s=drain_s or 0.0,
            max_batch_requests=MAX_REQUESTS,
            max_batch_tokens=1000,
            cache_tokens=self.engines[name].cache_tokens,
            prefix_tokens=self._prefixes.tokens,
            prefix_page=self._prefixes.page_tokens,
            profile=PROFILE,
        )

    def start_worker(self, name: str) -> None:
        room = 0 if self.mode is CacheMode.NONE else 64 + self._prefixes.tokens
        config = parse_config(SDAR if self.mode is CacheMode.BLOCK else LLADA)
        self.models[name] = ScriptedModel(self.texts, room, config, poison=self.poison)
        self.engines[name] = Engine(
            self.models[name], self.mode, EngineLimits(1000, MAX_REQUESTS), name, self._prefixes
        )
        self.jobs[name], self.received[name] = deque(), (MessageDeduplicator(), [])
        self.cycle([self.heartbeat(name)])

    def end_worker(self, name: str) -> None:
        self._remove_worker(name, ev.InstanceLost(name))

    def quarantine_worker(self, name: str) -> None:
        """End a worker that computes wrong: its texts start again, except those that clients have read."""
        self.restarted |= {text.name for text in self.unsettled.values() if not text.request.stream}
        self._remove_worker(name, ev.InstanceQuarantined(name), ev.InstanceLost(name))

    def _remove_worker(self, name: str, *events: ev.Event) -> None:
        del self.engines[name], self.models[name], self.jobs[name]
        self.cycle(events)

    def submit(self, text: Text) -> None:
        text = replace(text, is_aligned=self.mode is CacheMode.BLOCK)
        text = replace(text, has_edits=text.has_edits and text.is_aligned and not text.pinned)
        self.texts[text.number] = self.unsettled[text.name] = text
        self.cycle([text.arrival(self.now_s)])

    def cycle(self, events: Sequence[ev.Event] = ()) -> None:
        """Run one scheduling cycle and send its commands."""
        for command in self.core.cycle(events, self.now_s):
            match command:
                case ev.SendJobs(instance_id, jobs):
                    if instance_id in self.jobs:
                        self.jobs[instance_id].append(jobs)
                case ev.SaveCheckpoint(request_id, checkpoint):
                    self.checkpoints[request_id] = checkpoint
                case ev.SendProgress(request_id, progress) if not progress.is_draft:
                    columns = unpack_int32(progress.positions).tolist(), unpack_int32(progress.tokens).tolist()
                    for position, token in zip(*columns, strict=True):
                        assert self.streamed[request_id].setdefault(position, token) == token, (
                            "a streamed token changed"
                        )
                case ev.FinishRequest():
                    name = command.arrived.request.request_id
                    assert name in self.unsettled, f"{name} ended twice"
                    del self.unsettled[name]
                    self.finished[name] = command

    def deliver_jobs(self, name: str) -> None:
        if self.jobs[name]:
            message, (received, messages) = self.jobs[name].popleft(), self.received[name]
            if received.add(message):
                self.engines[name].accept(message)
            messages.append(message)

    def compute(self, name: str) -> bool:
        """Run one iteration. Returns: whether it had results. Raises: Poisoned with the instance's name."""
        try:
            results = self.engines[name].iterate()
        except Poisoned as error:
            raise Poisoned(name) from error
        if results is not None:
            self.results.append(results)
        return results is not None

    def deliver_results(self, count: int = 1) -> None:
        """Deliver the next `count` results to the scheduler in one cycle."""
        self.cycle([self.results.popleft() for _ in range(min(count, len(self.results)))])

    def run_until_idle(self) -> None:
        """Deliver and compute until no message and no step is left."""
        for _ in range(1000):
            for name in self.engines:
                while self.jobs[name]:
                    self.deliver_jobs(name)
                while self.compute(name):
                    pass
            if not self.results and not any(self.jobs.values()):
                return
            self.deliver_results(len(self.results))
        raise AssertionError("never idle")


def _ended(output_ids: Int32, request: Request, _checked: int = 0) -> bool:
    first = protected_tokens(request, {END_ID})
    return END_ID in output_ids[first:] or (bool(request.stop) and STOP_ID in output_ids)
