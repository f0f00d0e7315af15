"""A cell of real engines without a bus; a cycle's results arrive at the next one."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from services.scheduler.core import SchedulerCore
from services.scheduler.events import (
    Event,
    FinishRequest,
    InstanceUpdated,
    RequestArrived,
    SaveCheckpoint,
    SendJobs,
    SendProgress,
)
from services.scheduler.policies.fixed import FixedThresholdPolicy
from services.scheduler.policies.migration import MigrationPolicy
from services.scheduler.state.decision_log import ThresholdChoice
from services.scheduler.state.fleet import Fleet
from services.scheduler.state.request_table import RequestTable
from services.scheduler.state.step_pipeline import SENT
from services.worker.cache.prefix_pages import NO_PREFIXES, PrefixSize
from services.worker.engine.cache_mode import CacheMode
from services.worker.engine.engine import Engine, EngineLimits
from services.worker.model.model_runner import Runner
from shared.arrays import Int64, unpack_int32
from shared.messages.checkpoints import Checkpoint
from shared.messages.requests import Progress
from tests.builders import ARRIVAL_S, draining, registered, scheduler_core

MAX_CYCLES = 5000


@dataclass(frozen=True, slots=True)
class VaryingThreshold(FixedThresholdPolicy):
    """The steps of a request have three thresholds in turn, from `threshold` down by at most `spread`."""

    spread: float = 0.0

    def choose(self, rows: Int64, table: RequestTable, fleet: Fleet, now_s: float) -> ThresholdChoice:
        fixed = FixedThresholdPolicy.choose(self, rows, table, fleet, now_s)
        steps = table.steps[rows] + (table.pipeline.state[rows] >= SENT)
        return replace(fixed, thresholds=fixed.thresholds - self.spread * (steps % 3) / 2)


@dataclass
class ServedCell:
    """One engine for each runner, with `room` tokens for requests beside the pages of the prefix cache."""

    runners: Sequence[Runner]
    room: int
    threshold: float
    moves: MigrationPolicy = MigrationPolicy.NEVER
    lookahead: int = 1
    prefixes: PrefixSize = NO_PREFIXES
    canvas_steps: int = 0
    mode: CacheMode = CacheMode.BLOCK
    spread: float = 0.0  # of the thresholds
    finished: dict[str, FinishRequest] = field(default_factory=dict)
    progress: list[Progress] = field(default_factory=list)
    checkpoints: dict[str, Checkpoint] = field(default_factory=dict)
    epoch: int = 0

    def __post_init__(self) -> None:
        self.engines = {f"a-{i}": self._engine(f"a-{i}", runner) for i, runner in enumerate(self.runners)}
        self.core = self.start_scheduler()

    def _engine(self, name: str, runner: Runner) -> Engine:
        return Engine(runner, self.mode, EngineLimits(1024, 8), name, self.prefixes)

    def _registered(self, name: str) -> InstanceUpdated:
        room = 0 if self.mode is CacheMode.NONE else self.room
        pages = {"prefix_tokens": self.prefixes.tokens, "prefix_page": self.prefixes.page_tokens}
        return registered(name, cache_tokens=room, **pages)

    def start_scheduler(self) -> SchedulerCore:
        self.epoch += 1
        config = self.runners[0].config
        self.core = scheduler_core(
            lambda _: VaryingThreshold(self.threshold, self.moves, self.spread),
            epoch=self.epoch,
            mask_token_id=config.mask_token_id,
            vocab_size=config.vocab_size,
            thresholds=(self.threshold,),
            caching=self.mode is not CacheMode.NONE,
            exact_cache=self.mode is CacheMode.BLOCK,
            canvas_steps=self.canvas_steps,
            lookahead=self.lookahead,
            end_ids=(),
        )
        self.events: list[Event] = [self._registered(name) for name in self.engines]
        return self.core

    def cycle(self, arrivals: Sequence[RequestArrived] = ()) -> None:
        for command in self.core.cycle([*self.events, *arrivals], ARRIVAL_S):
            match command:
                case SendJobs(instance_id, jobs) if instance_id in self.engines:
                    self.engines[instance_id].accept(jobs)
                case SaveCheckpoint(request_id, checkpoint):
                    self.checkpoints[request_id] = checkpoint
                case SendProgress(_, progress):
                    self.progress.append(progress)
                case FinishRequest():
                    self.finished[command.arrived.request.request_id] = command
        self.events = [results for engine in self.engines.values() if (results := engine.iterate()) is not None]

    def serve(self, *waves: Sequence[RequestArrived]) -> None:
        """Serve all; a wave arrives at each cycle."""
        for wave in waves:
            self.cycle(wave)
        for _ in range(MAX_CYCLES):
            if len(self.finished) == sum(map(len, waves)):
                return
            self.cycle()
        raise AssertionError("not all requests ended")

    def serve_moving(self, arrived: RequestArrived) -> None:
        """Serve a request that leaves its instance before each of its steps."""
        name = arrived.request.request_id
        self.cycle([arrived])
        while name not in self.finished:
            at = self.core.fleet.instance_id(self.core.table.instance[self.core.table.row_of[name]])
            other = next(each for each in self.engines if each != at)
            self.events += [self._registered(other), draining(at)]
            self.cycle()

    def output(self, name: str = "r") -> list[int]:
        tokens: list[int] = self.finished[name].output_ids.tolist()
        return tokens


def written(progress: Progress) -> list[tuple[int, int]]:
    """The positions and tokens of a message."""
    return list(zip(unpack_int32(progress.positions).tolist(), unpack_int32(progress.tokens).tolist(), strict=True))


def streamed(progress: Sequence[Progress]) -> dict[int, int]:
    """The final tokens by position; none is sent twice with different values."""
    found: dict[int, int] = {}
    for each in progress:
        for position, token in written(each) if not each.is_draft else ():
            assert found.setdefault(position, token) == token
    return found
