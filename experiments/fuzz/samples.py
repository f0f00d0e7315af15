"""A valid message of every type, from which damaged ones are made."""

from typing import Any

import msgspec

from shared.arrays import pack_float32, pack_int32, pack_int64
from shared.messages.cell import CellConfig
from shared.messages.checkpoints import Checkpoint
from shared.messages.decisions import StepDecisions
from shared.messages.gateway import Batch, BatchError, BatchWork, Claim, Conversation, GatewayUse, KeyRate, StoredFile
from shared.messages.health import ServiceHealth
from shared.messages.instances import Control, Instance, ModelCard
from shared.messages.launch import InstanceSpec, LaunchAction, LaunchOrder, LaunchReply
from shared.messages.models import CanaryRecord, WeightsRecord
from shared.messages.plans import ClassLoad, PlanEvent, PlanRecord, PlanState, ReconfiguratorStats
from shared.messages.predict import PredictSteps, StepsLeft
from shared.messages.requests import (
    ActiveRequest,
    Arrival,
    Cancel,
    ChatMessage,
    FinishReason,
    Guesses,
    Outcome,
    OutcomeError,
    OutcomeStatus,
    Progress,
    Request,
    ServingStats,
    ThresholdUse,
    TopTokens,
    UnfinishedQuery,
    UnfinishedRequests,
)
from shared.messages.stats import ClusterLoad, InstanceLoad, SchedulerStats
from shared.messages.steps import RequestState, StepFailure, StepJobs, StepResults, StepTopTokens

VOCAB, MASK_ID = 64, 60
TICKET = 1 << 20  # of the first request of a scheduler
ARRIVAL_S = 1_700_000_000.0
SPEC = InstanceSpec(node="a", gpus=(0, 1))
TOP_TOKENS = TopTokens(positions=pack_int32([0]), tokens=pack_int32([9, 4]), confidences=pack_float32([0.9, 0.05]))
TOKENS: dict[str, Any] = {"positions": pack_int32([0]), "tokens": pack_int32([9]), "confidences": pack_float32([0.9])}
DECISIONS = StepDecisions(
    instances=["a-1"],
    at_s=pack_float32([0.25]),
    blocks=pack_int32([1]),
    kinds=pack_int32([0]),
    thresholds=pack_float32([0.9]),
    allowed=pack_float32([0.9]),
    time_left_s=pack_float32([0.5]),
    placed_on=pack_int32([0]),
    batch_tokens=pack_int32([96]),
    batch_requests=pack_int32([1]),
    step_latency_s=pack_float32([0.01]),
)
STATS = ServingStats(
    steps=9,
    recompute_steps=2,
    mean_threshold=0.8,
    min_threshold=0.7,
    slo_s=2.5,
    latency_s=0.4,
    slo_met=True,
    instances=["a-1"],
    migrations=0,
    thresholds=[ThresholdUse(threshold=0.9, steps=9, tokens=32)],
    step_s=0.1,
    predicted_steps=8.5,
)
LOAD = InstanceLoad(
    instance_id="a-1", open=True, requests=1, max_requests=64, tokens=96, max_tokens=8192, step_latency_s=0.01
)

_SAMPLES: list[msgspec.Struct] = [
    Request(
        request_id="r-1",
        messages=[ChatMessage(role="user", content="2+2?")],
        prompt_ids=pack_int32([5, 6]),
        output_tokens=64,
        slo_s=2.5,
        temperature=0.5,
        seed=7,
        stop=["\n"],
        stream=True,
        age_s=0.5,
    ),
    Arrival(request_id="r-1", arrival_s=ARRIVAL_S, prompt_tokens=9, output_tokens=64, slo_s=2.5),
    Outcome(
        request_id="r-1",
        status=OutcomeStatus.COMPLETED,
        text="4",
        finish_reason=FinishReason.STOP,
        prompt_tokens=5,
        completion_tokens=1,
        output_tokens=64,
        arrival_s=ARRIVAL_S,
        stats=STATS,
        decisions=DECISIONS,
        error=OutcomeError(message="none", field="prompt"),
        top_tokens=TOP_TOKENS,
    ),
    Progress(step=1, **TOKENS, top_tokens=TOP_TOKENS),
    Guesses(step=1, **TOKENS),
    ActiveRequest(is_known=True, key="alice", arrival_s=ARRIVAL_S),
    UnfinishedQuery(key="alice", instance="w-1", id_part="ab"),
    UnfinishedRequests(requests=[ActiveRequest(is_known=True, request_id="r", arrival_s=ARRIVAL_S, slo_s=5.0)]),
    ServiceHealth(process="host:1", version="1.0", uptime_s=2.5, memory_bytes=1 << 30),
    Cancel(reason="disconnected"),
    DECISIONS,
    StepJobs(
        epoch=3,
        number=1,
        tickets=pack_int64([TICKET]),
        steps=pack_int32([0]),
        blocks=pack_int32([0]),
        thresholds=pack_float32([0.9]),
        kinds=pack_int32([0]),
        batches=pack_int32([1]),
        states=[
            RequestState(
                ticket=TICKET,
                request_id="r-1",
                prompt_length=1,
                block_length=2,
                canvas=pack_int32([5, MASK_ID, MASK_ID, MASK_ID, MASK_ID]),
                temperature=0.5,
                seed=3,
                guesses=True,
                end_ids=pack_int32([1]),
            )
        ],
        drops=pack_int64([2]),
        forget_below=1,
        sent_s=ARRIVAL_S,
    ),
    StepResults(
        instance_id="a-1",
        epoch=3,
        tickets=pack_int64([TICKET]),
        steps=pack_int32([0]),
        counts=pack_int32([1]),
        **TOKENS,
        confidence_stats=pack_float32([[0.1, 0.2, 0.3, 0.4, 0.5]]),
        missing=pack_int64([4]),
        failures=[StepFailure(ticket=5, message="too long")],
        top_tokens=[
            StepTopTokens(
                ticket=TICKET,
                positions=TOP_TOKENS.positions,
                tokens=TOP_TOKENS.tokens,
                confidences=TOP_TOKENS.confidences,
            )
        ],
        latency_s=0.01,
        batch_tokens=3,
        sent_s=ARRIVAL_S,
    ),
    Instance(
        instance_id="a-1",
        model=ModelCard(name="m", max_length=512, mask_token_id=MASK_ID, eos_token_id=1, vocab_size=VOCAB),
        tp_degree=2,
        gpus=[0, 1],
        cache_tokens=512,
    ),
    Control(action="drain", within_s=1.0),
    Checkpoint(
        output_ids=pack_int32([4, 5]),
        block_length=2,
        steps=2,
        recompute_steps=1,
        threshold_tokens=1.8,
        lowest_threshold=0.9,
        migrations=0,
        instances=["a-1"],
        last_instance="a-1",
        step_s=0.1,
        steps_at=pack_int32([2]),
        tokens_at=pack_int32([2]),
    ),
    PredictSteps(
        features=pack_float32([[0.5] * 10]),
        thresholds=pack_float32([0.9]),
        masks_left=pack_int32([8]),
        blocks_left=pack_int32([1]),
    ),
    StepsLeft(steps_left=pack_float32([[4.0]]), predictor="v1"),
    SchedulerStats(
        at_s=ARRIVAL_S,
        epoch=3,
        policy="dilaserve",
        thresholds=[0.7, 0.9],
        shed=True,
        window_s=30.0,
        active=2,
        deferred=1,
        steps_in_flight=1,
        arrived=9,
        completed=5,
        failed=1,
        cancelled=1,
        migrations=2,
        steps=70,
        tokens=200,
        predictions=20,
        predictor_fallbacks=1,
        rps=0.3,
        completed_per_s=0.2,
        tokens_per_s=7.0,
        steps_per_s=2.0,
        slo_attainment=0.8,
        mean_threshold=0.8,
        latency_p50_s=0.5,
        latency_p99_s=0.9,
        cycles_per_s=10.0,
        cycle_mean_s=0.001,
        cycle_max_s=0.002,
        load=ClusterLoad(least_tokens=10.0, committed_tokens=20.0, capacity_tokens=30.0, throughput_tokens_per_s=15.0),
        instances=[LOAD],
    ),
    Claim(fingerprint="9f86d081"),
    Conversation(owner="alice", messages=[ChatMessage(role="user", content="2+2?")]),
    StoredFile(owner="1f3a", filename="in.jsonl", purpose="batch", created_s=5),
    BatchWork(batch_id="batch-1"),
    GatewayUse(gateway="gateway-1", rates=[KeyRate(key="k1", per_minute=60, due_s=1.0)], in_flight={"k1": 2}),
    Batch(
        batch_id="batch-1",
        owner="1f3a",
        endpoint="/v1/chat/completions",
        input_file_id="file-1",
        created_s=5,
        expires_s=86405,
        metadata={"night": "1"},
        total=3,
        errors=[BatchError(message="no JSON", line=2)],
    ),
    LaunchOrder(action=LaunchAction.STOP, spec=SPEC, grace_s=30.0),
    LaunchReply(instances=[SPEC]),
    ReconfiguratorStats(changes_instances=True, interval_s=300.0),
    PlanRecord(
        plan_id="20260101T000000-000001",
        decided_s=ARRIVAL_S,
        state=PlanState.RUNNING,
        reason="better",
        slack_s=3.5,
        classes=[ClassLoad(name="p128-o64", rps=2.0, prompt_tokens=9, output_tokens=64, unmasked_tokens=32, slo_s=5)],
        tokens_per_step={0.9: 2.5},
        before=[SPEC],
        target=[SPEC],
        events=[PlanEvent(at_s=2.0, text="stop worker-a-0-1")],
        ended_s=ARRIVAL_S,
    ),
    WeightsRecord(model="demo", sha256="ab" * 32),
    CanaryRecord(tokens=pack_int32([3]), confidences=pack_float32([0.5])),
    CellConfig(model="demo", policy="dilaserve", threshold=0.9, cache="dual", predictor="v1"),
]
SAMPLES: dict[type[Any], Any] = {type(sample): sample for sample in _SAMPLES}


def plain(value: Any) -> Any:
    """The content of a message as builtin types, with every field, also those with their default."""
    match value:
        case msgspec.Struct():
            return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
        case dict():
            return {key: plain(part) for key, part in value.items()}
        case list() | tuple():
            return [plain(part) for part in value]
        case _:
            return value
