"""A scheduler core with scripted instances, for tests of its policies."""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from services.scheduler.core import SchedulerCore
from services.scheduler.events import Command, Event, FinishRequest, SendJobs
from services.scheduler.factory import build_policy
from services.scheduler.registry import find_policy
from services.scheduler.settings import SchedulerSettings
from tests import builders
from tests.support.scripted_worker import ScriptedWorker

PROFILE = "tp,batch_tokens,step_kind,latency_ms\n" + "".join(
    f"{tp},{tokens},{kind},{(tokens * per_token + 1) / tp}\n"
    for tp in (1, 2)
    for kind, per_token in (("recompute", 1.0), ("cache", 1.0))
    for tokens in (32, 1024, 8192)
)
# An iteration takes 20 ms for each kind of step; tokens hardly count.
FLAT_PROFILE = "tp,batch_tokens,step_kind,latency_ms\n" + "".join(
    f"1,{tokens},{kind},{20 + tokens / 1000}\n" for tokens in (32, 1024, 8192) for kind in ("recompute", "cache")
)
THRESHOLDS = (0.5, 0.7, 0.9)
SETTINGS = SchedulerSettings.__struct_fields__
TOKENS_PER_STEP = (4.0, 2.0, 1.0)
registered = partial(builders.registered, profile=PROFILE)
draining = partial(builders.draining, profile=PROFILE)


@dataclass
class ScriptedCell:
    """A core and the workers that answer it; `send` gives it events."""

    core: SchedulerCore
    workers: dict[str, ScriptedWorker] = field(default_factory=dict)
    finished: list[FinishRequest] = field(default_factory=list)
    now_s: float = builders.ARRIVAL_S

    def send(self, *events: Event) -> list[Command]:
        commands = self.core.cycle(events, self.now_s)
        self.finished += [c for c in commands if isinstance(c, FinishRequest)]
        return commands

    def answers(self, commands: list[Command]) -> list[Event]:
        return [results for c in jobs_in(commands) for results in self.workers[c.instance_id].run_each(c.jobs)]

    def answer(self, commands: list[Command]) -> list[Command]:
        return self.send(*self.answers(commands))

    def serve(self, commands: list[Command]) -> None:
        while jobs_in(commands):
            commands = self.answer(commands)


def make_cell(
    instances: dict[str, int],
    *,
    caching: bool = False,
    exact: bool = False,
    per_step: int = 4,
    tokens_per_step: tuple[float, ...] = TOKENS_PER_STEP,
    lookahead: int = 0,
    **options: Any,
) -> ScriptedCell:
    """`instances` maps names to TP degrees; `options` are settings, or fields of the policy."""
    given = {"policy": "paper", **{name: value for name, value in options.items() if name in SETTINGS}}
    settings = SchedulerSettings(model="m", thresholds=THRESHOLDS, **given)
    policy = find_policy(settings.policy_name)
    of_policy = {name: value for name, value in options.items() if name not in SETTINGS}
    core = builders.scheduler_core(
        partial(build_policy, settings, **of_policy),
        thresholds=THRESHOLDS,
        tokens_per_step=tokens_per_step,
        end_ids=(),
        caching=caching,
        lookahead=lookahead,
        exact_cache=exact,
        learns_difficulty=policy.learns_difficulty,
        asks_predictor=policy.uses_estimates,
        shed=settings.shed,
    )
    cell = ScriptedCell(core, {name: ScriptedWorker(name, per_step) for name in instances})
    cell.send(*[registered(name, tp_degree=tp) for name, tp in instances.items()])
    return cell


def jobs_in(commands: list[Command]) -> list[SendJobs]:
    """The messages that have a step to run."""
    return [c for c in commands if isinstance(c, SendJobs) and c.jobs.tickets]
