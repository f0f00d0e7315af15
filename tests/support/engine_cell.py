"""A cell without a bus: the scheduler's core and workers' engines, every message between them in a test's hand."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from services.scheduler import events as ev
from services.scheduler.policies import MigrationPolicy
from services.scheduler.policies.fixed import FixedThresholdPolicy
from services.worker.cache.cache_mode import CacheMode
from services.worker.engine.batch import ForwardBatch
from services.worker.engine.engine import Engine, EngineLimits
from services.worker.engine.step_jobs import MessageDeduplicator
from services.worker.model.config import ModelConfig, parse_config
from services.worker.model.model_runner import TokenPredictions
from shared.arrays import Float64, Int32, Int64
from shared.messages.checkpoints import Checkpoint
from shared.messages.instances import InstanceState
from shared.messages.requests import Request
from shared.messages.steps import StepJobs, StepResults
from tests.builders import registered, scheduler_core
from tests.support.random_model import LLADA, MASK_ID

END_ID = 1
STOP_ID = 2  # what the stop string "." stands for
FIRST_ID, LAST_ID = 10, 59  # of the tokens that end nothing
PROMPT_ID = 5
THRESHOLD = 0.75
BLOCK = 4
STEP_TIMEOUT_S = 10.0
MOST_REQUESTS = 4  # of an instance


@dataclass(frozen=True, slots=True)
class Text:
    """What the model says to one request, whose number is also its seed. A token depends on its position alone."""

    number: int
    blocks: int
    end_at: int | None = None  # position of an end-of-text token
    stop_at: int | None = None  # position of a token that is the request's stop string

    @property
    def name(self) -> str:
        return f"r{self.number}"

    @property
    def prompt_length(self) -> int:
        return 1 + self.number % 3

    def token(self, position: int) -> int:
        if position == self.end_at:
            return END_ID
        if position == self.stop_at:
            return STOP_ID
        return FIRST_ID + hash((self.number, position)) % (LAST_ID - FIRST_ID + 1)

    def confidence(self, position: int) -> float:
        return (hash((position, self.number)) % 1000) / 1000

    def plain(self) -> tuple[list[int], int]:
        """The output of a plain loop, and the steps it takes."""
        output: list[int] = []
        steps = 0
        for block in range(self.blocks):
            masks = list(range(block * BLOCK, (block + 1) * BLOCK))
            output += [self.token(position) for position in masks]
            while masks:
                best = max(masks, key=self.confidence)
                masks = [p for p in masks if self.confidence(p) < THRESHOLD and p != best]
                steps += 1
            if END_ID in output or (self.stop_at is not None and STOP_ID in output):
                break
        return output, steps

    def arrival(self, at_s: float, checkpoint: Checkpoint | None = None) -> ev.RequestArrived:
        stop = ["."] if self.stop_at is not None else []
        request = Request(request_id=self.name, output_tokens=1, block_length=BLOCK, seed=self.number, stop=stop)
        prompt = np.full(self.prompt_length, PROMPT_ID, np.int32)
        return ev.RequestArrived(request, prompt, self.blocks * BLOCK, 5.0, at_s, self.name, checkpoint)


@dataclass
class ScriptedModel:
    """Says what the texts say, and holds that it is fed, and reads from its cache, nothing but what belongs there."""

    texts: dict[int, Text]
    cache_slots: int
    config: ModelConfig = field(default_factory=lambda: parse_config(LLADA))
    too_large: bool = False  # whether the device's memory is too small for two requests at once
    kept: dict[int, tuple[int, int]] = field(default_factory=dict)  # the request and position whose keys a slot holds

    def run(self, batch: ForwardBatch) -> TokenPredictions:
        if self.too_large and len(batch.lengths) > 1:
            raise torch.OutOfMemoryError("too large")
        self._check(batch)
        owners = np.repeat(batch.seeds, batch.counts).tolist()
        at = [
            (self.texts[owner], int(position) - self.texts[owner].prompt_length)
            for owner, position in zip(owners, batch.candidates.tolist(), strict=True)
        ]
        tokens: Int64 = np.array([text.token(position) for text, position in at], dtype=np.int64)
        confidences: Float64 = np.array([text.confidence(position) for text, position in at])
        return TokenPredictions(tokens, confidences)

    def _check(self, batch: ForwardBatch) -> None:
        owners = np.repeat(batch.seeds, batch.lengths).tolist()
        for owner, position, token in zip(owners, batch.positions.tolist(), batch.tokens.tolist(), strict=True):
            text = self.texts[owner]
            output_position = position - text.prompt_length
            expected = PROMPT_ID if output_position < 0 else text.token(output_position)
            assert token in (expected, MASK_ID), "fed what is not its own"
        if self.cache_slots:
            for owner, position, slot in zip(owners, batch.positions.tolist(), batch.write_slots.tolist(), strict=True):
                self.kept[slot] = (owner, position)
            read = iter(batch.read_slots.tolist())
            for i in range(batch.num_recompute, len(batch.lengths)):
                for position in range(int(batch.key_lengths[i])):
                    assert self.kept[next(read)] == (int(batch.seeds[i]), position), "read another's cache"


class EngineCell:
    """Messages wait until they are delivered; `now_s` passes as told."""

    def __init__(self, *, caching: bool, lookahead: int, moves: MigrationPolicy) -> None:
        self.caching, self.lookahead, self.moves = caching, lookahead, moves
        self.now_s = 100.0
        self.epoch = 0
        self.texts: dict[int, Text] = {}
        self.models: dict[str, ScriptedModel] = {}
        self.engines: dict[str, Engine] = {}
        self.jobs: dict[str, deque[StepJobs]] = {}
        self.taken: dict[str, tuple[MessageDeduplicator, list[StepJobs]]] = {}  # the messages that have come
        self.results: deque[StepResults] = deque()
        self.checkpoints: dict[str, Checkpoint] = {}
        self.finished: dict[str, ev.FinishRequest] = {}
        self.unsettled: dict[str, Text] = {}
        self.start_scheduler()

    def start_scheduler(self) -> None:
        """One that knows what the bus keeps, and no more."""
        self.epoch += 1
        self.core = scheduler_core(
            lambda _: FixedThresholdPolicy(THRESHOLD, self.moves),
            _ended,
            epoch=self.epoch,
            mask_token_id=MASK_ID,
            thresholds=(0.5, THRESHOLD),
            tokens_per_step=(2.0, 1.5),
            caching=self.caching,
            lookahead=self.lookahead,
            end_ids=(END_ID,),
            step_timeout_s=STEP_TIMEOUT_S,
        )
        arrivals = [text.arrival(self.now_s, self.checkpoints.get(name)) for name, text in self.unsettled.items()]
        self.cycle([*arrivals, *(self.seen(name) for name in self.engines)])

    def seen(self, name: str, drain_until_s: float | None = None) -> ev.InstanceUpdated:
        """Ready, or draining."""
        state = InstanceState.READY if drain_until_s is None else InstanceState.DRAINING
        return registered(
            name,
            state=state,
            drain_until_s=drain_until_s or 0.0,
            max_batch_requests=MOST_REQUESTS,
            max_batch_tokens=1000,
            cache_tokens=self.models[name].cache_slots,
        )

    def start_worker(self, name: str) -> None:
        room = 64 if self.caching else 0
        self.models[name] = ScriptedModel(self.texts, room)
        mode = CacheMode.DUAL if self.caching else CacheMode.NONE
        self.engines[name] = Engine(self.models[name], mode, EngineLimits(1000, MOST_REQUESTS), name)
        self.jobs[name], self.taken[name] = deque(), (MessageDeduplicator(), [])
        self.cycle([self.seen(name)])

    def end_worker(self, name: str) -> None:
        del self.engines[name], self.models[name], self.jobs[name]
        self.cycle([ev.InstanceLost(name)])

    def ask(self, text: Text) -> None:
        self.texts[text.number] = self.unsettled[text.name] = text
        self.cycle([text.arrival(self.now_s)])

    def cycle(self, events: Sequence[ev.Event] = ()) -> None:
        """The scheduler decides, and what it wants is on its way."""
        for command in self.core.cycle(events, self.now_s):
            match command:
                case ev.SendJobs(instance_id, jobs):
                    if instance_id in self.jobs:
                        self.jobs[instance_id].append(jobs)
                case ev.SaveCheckpoint(request_id, checkpoint):
                    self.checkpoints[request_id] = checkpoint
                case ev.FinishRequest():
                    name = command.arrived.request.request_id
                    assert name in self.unsettled, f"{name} ended twice"
                    del self.unsettled[name]
                    self.finished[name] = command

    def take_jobs(self, name: str) -> None:
        if self.jobs[name]:
            message, (taken, messages) = self.jobs[name].popleft(), self.taken[name]
            if taken.add(message):
                self.engines[name].accept(message)
            messages.append(message)

    def compute(self, name: str) -> bool:
        """One iteration, if there is anything to run or to say."""
        results = self.engines[name].iterate()
        if results is not None:
            self.results.append(results)
        return results is not None

    def tell(self, count: int = 1) -> None:
        """The next results reach the scheduler, together."""
        self.cycle([ev.StepResultsReceived(self.results.popleft()) for _ in range(min(count, len(self.results)))])

    def settle(self) -> None:
        """Until no message is on its way and no engine has anything to run."""
        for _ in range(1000):
            for name in self.engines:
                while self.jobs[name]:
                    self.take_jobs(name)
                while self.compute(name):
                    pass
            if not self.results and not any(self.jobs.values()):
                return
            self.tell(len(self.results))
        raise AssertionError("never quiet")


def _ended(output_ids: Int32, stop: Sequence[str]) -> bool:
    return END_ID in output_ids or (bool(stop) and STOP_ID in output_ids)
