"""Builders with defaults: a test states only the values that its case is about."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from services.scheduler.core import CoreSettings, SchedulerCore
from services.scheduler.events import InstanceUpdated, RequestArrived
from services.scheduler.policies.fixed import FixedThresholdPolicy
from services.scheduler.policies.migration import MigrationPolicy
from shared.arrays import Int32
from shared.messages.cell import CellConfig
from shared.messages.instances import Instance, InstanceState, ModelCard
from shared.messages.requests import Request, ServingStats
from shared.messages.stats import InstanceLoad, SchedulerStats
from tests.support.checked_pipeline import CheckedPipeline

MASK_ID = 1
END_ID = 2
EPOCH = 7
ARRIVAL_S = 100.0
ANY_MODEL = CellConfig(model="", policy="fixed", cache="none")  # the configuration of a cell for any model


def model_card(**fields: Any) -> ModelCard:
    """The model "m" with 512 tokens."""
    defaults: dict[str, Any] = {
        "name": "m",
        "max_length": 512,
        "mask_token_id": MASK_ID,
        "eos_token_id": END_ID,
        "vocab_size": 100,
    }
    return ModelCard(**(defaults | fields))


def instance(instance_id: str = "w-1", **fields: Any) -> Instance:
    """A ready TP-1 instance of `model_card()`."""
    defaults: dict[str, Any] = {"model": model_card(), "tp_degree": 1}
    return Instance(instance_id=instance_id, **(defaults | fields))


def registered(instance_id: str = "a-1", **fields: Any) -> InstanceUpdated:
    """The event of an instance's heartbeat."""
    return InstanceUpdated(instance(instance_id, **fields))


def draining(instance_id: str = "a-1", drain_s: float = 0.0, **fields: Any) -> InstanceUpdated:
    """The event of a draining instance's heartbeat."""
    return registered(instance_id, state=InstanceState.DRAINING, drain_s=drain_s, **fields)


def arrival(
    request_id: str,
    *,
    prompt_tokens: int = 64,
    output_tokens: int = 64,
    slo_s: float = 1e6,
    delivery: object = None,
    **fields: Any,
) -> RequestArrived:
    """A request that arrived at ARRIVAL_S; `fields` are those of the request message."""
    request = Request(request_id=request_id, output_tokens=output_tokens, **fields)
    prompt = np.arange(3, 3 + prompt_tokens, dtype=np.int32)
    return RequestArrived(request, prompt, output_tokens, slo_s, ARRIVAL_S, delivery)


def scheduler_core(
    make_policy: Callable[[Any], Any] | None = None,
    text_ended: Callable[[Int32, Request, int], bool] | None = None,
    *,
    end_ids: tuple[int, ...] = (END_ID,),
    **settings: Any,
) -> SchedulerCore:
    """By default with a fixed threshold of 0.9 and no migration; a text ends at a token of `end_ids`."""
    defaults: dict[str, Any] = {
        "epoch": EPOCH,
        "mask_token_id": MASK_ID,
        "thresholds": (0.9,),
        "tokens_per_step": (1.0,),
        "end_ids": end_ids,
    }
    core = SchedulerCore(
        CoreSettings(**(defaults | settings)),
        make_policy or (lambda _: FixedThresholdPolicy(0.9, MigrationPolicy.NEVER)),
        text_ended or (lambda output_ids, _request, _checked: bool(np.isin(output_ids, end_ids).any())),
    )
    core.table.pipeline.__class__ = CheckedPipeline
    return core


def serving_stats(**fields: Any) -> ServingStats:
    """The statistics of a request that met its SLO in one step."""
    defaults: dict[str, Any] = {
        "steps": 1,
        "recompute_steps": 1,
        "mean_threshold": 0.9,
        "min_threshold": 0.9,
        "slo_s": 5.0,
        "latency_s": 0.5,
        "slo_met": True,
        "instances": ["a-1"],
        "migrations": 0,
    }
    return ServingStats(**(defaults | fields))


def scheduler_stats(**fields: Any) -> SchedulerStats:
    """The statistics of a cell whose one instance is that of `AnsweringScheduler`."""
    load = InstanceLoad(
        instance_id="worker-test",
        open=True,
        requests=4,
        max_requests=64,
        tokens=300,
        max_tokens=8192,
        step_latency_s=0.012,
    )
    defaults: dict[str, Any] = {
        "at_s": time.time(),
        "epoch": 1,
        "policy": "dilaserve",
        "thresholds": [0.5, 0.9],
        "window_s": 30.0,
        "active": 4,
        "deferred": 0,
        "steps_in_flight": 4,
        "arrived": 10,
        "completed": 6,
        "failed": 0,
        "cancelled": 0,
        "migrations": 0,
        "steps": 60,
        "tokens": 600,
        "predictions": 10,
        "predictor_fallbacks": 0,
        "rps": 1.5,
        "completed_per_s": 1.4,
        "tokens_per_s": 90.0,
        "steps_per_s": 9.0,
        "slo_attainment": 0.95,
        "mean_threshold": 0.8,
        "latency_p50_s": 0.4,
        "latency_p99_s": 1.2,
        "cycles_per_s": 20.0,
        "cycle_mean_s": 0.001,
        "cycle_max_s": 0.004,
        "instances": [load],
    }
    return SchedulerStats(**(defaults | fields))
