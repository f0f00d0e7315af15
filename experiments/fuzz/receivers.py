"""The code behind each entry point of the bus, without the bus: bytes in, BadInput or nothing out."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import torch

from dilaserve.stack.up_options import DEMO_MODEL
from experiments.fuzz.samples import MASK_ID, SAMPLES, VOCAB
from services.gateway.admission.admission import KeyUse
from services.gateway.api.response_models import Serving, UnfinishedRequest
from services.gateway.api.routes.batches import batch_object
from services.gateway.api.routes.requests import step_list
from services.gateway.console.cluster_view import ClusterView, ServiceWatch, load_view, node_views
from services.gateway.inflight import unpack_tokens
from services.predictor.model import StepPredictor, load_predictor
from services.predictor.queries import read_query
from services.reconfigurator.monitoring.database_rows import arrival_row, outcome_row, plan_row
from services.scheduler.core import CoreSettings, SchedulerCore
from services.scheduler.events import InstanceUpdated, RequestArrived
from services.scheduler.io.lookups import matching_requests
from services.scheduler.io.request_decoder import decode_request
from services.scheduler.policies.fixed import FixedThresholdPolicy
from services.scheduler.policies.migration import MigrationPolicy
from services.scheduler.state.output_buffer import MASKED
from services.worker.engine.cache_mode import CacheMode
from services.worker.engine.engine import Engine, EngineLimits
from services.worker.engine.self_check import Canary
from services.worker.model.decoder import PackedDecoder
from services.worker.model.families import parse_config
from services.worker.model.model_runner import Runner, TokenPredictions
from shared.bus.codec import decode, encode
from shared.messages.checkpoints import Checkpoint
from shared.messages.gateway import Batch, GatewayUse
from shared.messages.health import ServiceHealth
from shared.messages.instances import Instance
from shared.messages.models import CanaryRecord
from shared.messages.plans import PlanRecord
from shared.messages.predict import PredictSteps
from shared.messages.requests import Arrival, Guesses, Outcome, Progress, Request, UnfinishedQuery, UnfinishedRequests
from shared.messages.stats import SchedulerStats
from shared.messages.steps import StepJobs, StepResults

NOW_S = 100.0
DECODER = {
    "architectures": ["LLaDAModelLM"],
    "vocab_size": VOCAB,
    "max_sequence_length": 128,
    "mask_token_id": MASK_ID,
    "eos_token_id": 1,
    "n_layers": 1,
    "d_model": 16,
    "n_heads": 2,
    "mlp_hidden_size": 32,
    "rope_theta": 10_000.0,
    "rms_norm_eps": 1e-5,
}


@dataclass(frozen=True, slots=True)
class Receiver:
    """`receive(data)` raises BadInput if the data are invalid; any other error is a fault."""

    name: str
    kind: type
    receive: Callable[[bytes], Any]


def receive_results(data: bytes) -> None:
    """Apply step results to a scheduler with one request on one instance."""
    message = decode(data, StepResults)
    core = _core_with_request(None)
    core.cycle([message], NOW_S + 1)
    core.cycle([], NOW_S + 2)
    written = core.table.outputs.tokens[core.table.outputs.tokens != MASKED]
    if not ((written >= 0) & (written < VOCAB) & (written != MASK_ID)).all():
        raise AssertionError("an invalid token was written")


def receive_checkpoint(data: bytes) -> None:
    """Continue a request from a checkpoint."""
    _core_with_request(decode(data, Checkpoint)).cycle([], NOW_S + 1)


def receive_instance(data: bytes) -> None:
    """Register an instance with the scheduler and the gateway, and place a request on it."""
    instance = decode(data, Instance)
    core = _core()
    core.cycle([InstanceUpdated(instance), _arrival(None)], NOW_S)
    core.cycle([], NOW_S + 1)
    _replied(
        ClusterView(
            cell="c",
            model="m",
            policy=None,
            ready=True,
            reason=None,
            slack=None,
            nodes=node_views([instance], ()),
            services=[],
        )
    )


def receive_query(data: bytes) -> None:
    """Predict steps."""
    _predictor().steps_left([read_query(decode(data, PredictSteps))])


def receive_jobs(data: bytes) -> None:
    """Run the jobs of a message, as a worker does."""
    engine = _engine()
    engine.accept(decode(data, StepJobs))
    for _ in range(4):
        result = engine.run_iteration()
        if result is None:
            break
        decode(encode(result.message()), StepResults)
        for _, guesses in result.report.provisional:
            encode(guesses)


def receive_canary(data: bytes) -> None:
    """Compare a canary with the one that the cell has recorded."""
    found = TokenPredictions(np.array([3]), np.array([0.5]), np.array([True]))
    Canary(_runner(), found).check_against(decode(data, CanaryRecord))


def receive_progress(data: bytes) -> None:
    """Read tokens for a streaming client."""
    _read_tokens(decode(data, Progress))


def receive_guesses(data: bytes) -> None:
    """Read provisional tokens for a streaming client."""
    _read_tokens(decode(data, Guesses))


def receive_outcome(data: bytes) -> None:
    """Build the reply and the database row of an outcome."""
    outcome = decode(data, Outcome)
    outcome_row(outcome)
    _replied(Serving.of(outcome))
    json.dumps(step_list(outcome.decisions, outcome.stats.slo_s if outcome.stats else 1.0), allow_nan=False)


def receive_stats(data: bytes) -> None:
    """Show the statistics on the console."""
    stats = decode(data, SchedulerStats)
    _replied(load_view(stats, [], NOW_S))


def receive_unfinished(data: bytes) -> None:
    """List the requests in progress."""
    for active in decode(data, UnfinishedRequests).requests:
        _replied(UnfinishedRequest.of(active))


def receive_request(data: bytes) -> None:
    """Read a named producer's request, or its id if the rest is invalid."""
    decode_request("dilaserve.cell0.requests.alice", data)


def receive_unfinished_query(data: bytes) -> None:
    """Find the unfinished requests that a gateway asks for."""
    list(matching_requests(decode(data, UnfinishedQuery), [], _core_with_request(None)))


def receive_use(data: bytes) -> None:
    """Count the use of API keys at another gateway, then that of a request here."""
    use = decode(data, GatewayUse)

    async def count() -> None:
        here = KeyUse(dict)
        here.receive(use, 0.0)
        for rate in use.rates:
            here.acquire(rate.key, rate.per_minute)
            here.in_flight_elsewhere(rate.key)

    asyncio.run(count())


def receive_health(data: bytes) -> None:
    """Show the process of a service on the console."""
    watch = ServiceWatch()
    watch.receive("worker", decode(data, ServiceHealth))
    for view in watch.views(None):
        _replied(view)


def receive_batch(data: bytes) -> None:
    """Show a batch to its client."""
    _replied(batch_object(decode(data, Batch)))


RECEIVERS = [
    Receiver("scheduler: request", Request, receive_request),
    Receiver("scheduler: query of unfinished requests", UnfinishedQuery, receive_unfinished_query),
    Receiver("scheduler: step results", StepResults, receive_results),
    Receiver("scheduler: checkpoint", Checkpoint, receive_checkpoint),
    Receiver("scheduler and gateway: registration", Instance, receive_instance),
    Receiver("predictor: query", PredictSteps, receive_query),
    Receiver("worker: step jobs", StepJobs, receive_jobs),
    Receiver("worker: recorded canary", CanaryRecord, receive_canary),
    Receiver("gateway: progress", Progress, receive_progress),
    Receiver("gateway: guesses", Guesses, receive_guesses),
    Receiver("gateway and reconfigurator: outcome", Outcome, receive_outcome),
    Receiver("gateway: requests in progress", UnfinishedRequests, receive_unfinished),
    Receiver("gateway: statistics", SchedulerStats, receive_stats),
    Receiver("gateway: use of keys", GatewayUse, receive_use),
    Receiver("gateway: state of a service", ServiceHealth, receive_health),
    Receiver("gateway: batch", Batch, receive_batch),
    Receiver("reconfigurator: arrival", Arrival, lambda data: arrival_row(decode(data, Arrival))),
    Receiver("reconfigurator: plan", PlanRecord, lambda data: plan_row(decode(data, PlanRecord))),
]
RECEIVERS += [Receiver(f"decoder of {kind.__name__}", kind, partial(decode, kind=kind)) for kind in SAMPLES]


def _core() -> SchedulerCore:
    settings = CoreSettings(
        epoch=3, mask_token_id=MASK_ID, thresholds=(0.9,), tokens_per_step=(1.0,), vocab_size=VOCAB, caching=True
    )
    return SchedulerCore(
        settings, lambda _: FixedThresholdPolicy(0.9, MigrationPolicy.NEVER), lambda _ids, _stop, _checked: False
    )


def _core_with_request(checkpoint: Checkpoint | None) -> SchedulerCore:
    core = _core()
    instance = decode(encode(SAMPLES[Instance]), Instance)
    core.cycle([InstanceUpdated(instance)], NOW_S)
    core.cycle([_arrival(checkpoint)], NOW_S)
    return core


def _arrival(checkpoint: Checkpoint | None) -> RequestArrived:
    request = Request(request_id="r-1", output_tokens=4, block_length=2)
    return RequestArrived(request, np.array([5], np.int32), 4, 10.0, NOW_S, None, checkpoint=checkpoint)


@cache
def _predictor() -> StepPredictor:
    return load_predictor(DEMO_MODEL / "predictor")[0]


@cache
def _runner() -> Runner:
    torch.manual_seed(0)
    return Runner(PackedDecoder(parse_config(DECODER)).eval(), cache_tokens=256)


def _engine() -> Engine:
    return Engine(_runner(), CacheMode.DUAL, EngineLimits(tokens=512, requests=8), "a-1")


def _read_tokens(message: Progress) -> None:
    tokens = unpack_tokens(message, 64, VOCAB)
    json.dumps([tokens.step, tokens.confidences.tolist()], allow_nan=False)


def _replied(model: Any) -> None:
    """Encode the reply as strict JSON: clients read no NaN."""
    json.dumps(model.model_dump(mode="python"), allow_nan=False, default=str)
