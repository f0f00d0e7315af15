"""Messages stored by earlier versions stay readable: one sample per type, as first written.

To add a sample, add the message to SAMPLES and run this file as a program. It never overwrites a sample.
"""

import math
from pathlib import Path

import msgspec
import pytest

from shared.arrays import pack_float32, pack_int32, pack_int64
from shared.bus.codec import decode, encode
from shared.errors import BadInput
from shared.messages.cell import CellConfig
from shared.messages.checkpoints import Checkpoint
from shared.messages.decisions import StepDecisions
from shared.messages.gateway import (
    Batch,
    BatchError,
    BatchStatus,
    BatchWork,
    Claim,
    Conversation,
    GatewayUse,
    KeyRate,
    StoredFile,
)
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
    UnfinishedQuery,
    UnfinishedRequests,
)
from shared.messages.stats import ClusterLoad, InstanceLoad, SchedulerStats
from shared.messages.steps import RequestState, StepFailure, StepJobs, StepResults

DIRECTORY = Path(__file__).parent / "samples"

SAMPLES: list[msgspec.Struct] = [
    Request(
        request_id="r-1",
        messages=[ChatMessage(role="user", content="2+2?")],
        output_tokens=64,
        slo_s=2.5,
        priority=3,
        min_threshold=0.6,
        temperature=0.5,
        seed=7,
        stop=["\n"],
        stream=True,
    ),
    Outcome(
        request_id="r-1",
        status=OutcomeStatus.COMPLETED,
        text="4",
        finish_reason=FinishReason.STOP,
        prompt_tokens=5,
        completion_tokens=1,
        output_tokens=64,
        arrival_s=1.5,
        stats=ServingStats(
            steps=9,
            recompute_steps=2,
            mean_threshold=0.8,
            min_threshold=0.7,
            slo_s=2.5,
            latency_s=0.4,
            slo_met=True,
            instances=["a-1"],
            migrations=0,
        ),
        error=OutcomeError(message="none", field="prompt"),
    ),
    Progress(step=1, positions=pack_int32([0]), tokens=pack_int32([9]), confidences=pack_float32([0.9])),
    Cancel(reason="disconnected"),
    StepJobs(
        epoch=3,
        tickets=pack_int64([1 << 20]),
        steps=pack_int32([0]),
        blocks=pack_int32([0]),
        thresholds=pack_float32([0.9]),
        kinds=pack_int32([0]),
        states=[
            RequestState(
                ticket=1 << 20, request_id="r-1", prompt_length=1, block_length=2, canvas=pack_int32([5, 0, 0])
            )
        ],
        drops=pack_int64([2]),
        sent_s=1.5,
    ),
    StepResults(
        instance_id="a-1",
        epoch=3,
        tickets=pack_int64([1 << 20]),
        steps=pack_int32([0]),
        counts=pack_int32([1]),
        positions=pack_int32([0]),
        tokens=pack_int32([9]),
        confidences=pack_float32([0.9]),
        confidence_stats=pack_float32([[0.1, 0.2, 0.3, 0.4, 0.5]]),
        missing=pack_int64([4]),
        failures=[StepFailure(ticket=5, message="too long")],
        latency_s=0.01,
        batch_tokens=3,
    ),
    Instance(
        instance_id="a-1",
        model=ModelCard(name="demo", max_length=512, mask_token_id=0, eos_token_id=1, vocab_size=100),
        tp_degree=2,
        gpus=[0, 1],
    ),
    Arrival(request_id="r-1", arrival_s=1.5, prompt_tokens=9, output_tokens=64, slo_s=2.5),
    Control(action="drain"),
    Checkpoint(
        output_ids=pack_int32([1, 2]),
        block_length=2,
        steps=2,
        recompute_steps=1,
        threshold_tokens=1.8,
        lowest_threshold=0.9,
        migrations=0,
        instances=["a-1"],
    ),
    PredictSteps(
        features=pack_float32([[0.0] * 10]),
        thresholds=pack_float32([0.9]),
        masks_left=pack_int32([8]),
        blocks_left=pack_int32([1]),
    ),
    StepsLeft(steps_left=pack_float32([[4.0]]), predictor="v1"),
    SchedulerStats(
        at_s=9.5,
        epoch=3,
        policy="dilaserve",
        thresholds=[0.7, 0.9],
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
        mean_threshold=None,
        latency_p50_s=0.5,
        latency_p99_s=None,
        cycles_per_s=10.0,
        cycle_mean_s=0.001,
        cycle_max_s=0.002,
        load=ClusterLoad(least_tokens=10.0, committed_tokens=20.0, capacity_tokens=30.0, throughput_tokens_per_s=15.0),
        instances=[
            InstanceLoad(
                instance_id="a-1",
                open=True,
                requests=1,
                max_requests=64,
                tokens=96,
                max_tokens=8192,
                step_latency_s=0.01,
            )
        ],
    ),
    StepDecisions(
        first_step=2,
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
    ),
    Guesses(step=3, positions=pack_int32([4]), tokens=pack_int32([7]), confidences=pack_float32([0.25])),
    Claim(fingerprint="9f86d081"),
    GatewayUse(
        gateway="a1", rates=[KeyRate(key="k-1", per_minute=60, allowed=3, due_s=1_700_000_000.5)], in_flight={"k-1": 2}
    ),
    Conversation(owner="alice", messages=[ChatMessage(role="user", content="2+2?")]),
    StoredFile(owner="1f3a", filename="in.jsonl", purpose="batch", created_s=5),
    BatchWork(batch_id="batch-1"),
    Batch(
        batch_id="batch-1",
        owner="1f3a",
        endpoint="/v1/chat/completions",
        input_file_id="file-1",
        created_s=5,
        expires_s=86405,
        status=BatchStatus.FAILED,
        metadata={"night": "1"},
        total=3,
        completed=1,
        failed=2,
        ended_s=9,
        errors=[BatchError(message="no JSON", line=2)],
    ),
    LaunchOrder(action=LaunchAction.STOP, spec=InstanceSpec(node="a", gpus=(0, 1)), grace_s=30.0),
    LaunchReply(instances=[InstanceSpec(node="a", gpus=(0, 1))]),
    ReconfiguratorStats(changes_instances=True, interval_s=300.0),
    PlanRecord(
        plan_id="20260101T000000-000001",
        decided_s=1.5,
        state=PlanState.RUNNING,
        reason="the secondary objective improves by at least 10%",
        status="optimal",
        mean_threshold=0.9,
        slack_s=3.5,
        solve_s=0.2,
        classes=[ClassLoad(name="p128-o64", rps=2.0, prompt_tokens=9, output_tokens=64, unmasked_tokens=32, slo_s=5)],
        tokens_per_step={0.9: 2.5},
        before=[InstanceSpec(node="a", gpus=(0, 1))],
        target=[InstanceSpec(node="a", gpus=(0,)), InstanceSpec(node="a", gpus=(1,))],
        events=[PlanEvent(at_s=2.0, text="stop worker-a-0-1")],
    ),
    ActiveRequest(is_known=True, key="alice", arrival_s=1.5),
    UnfinishedQuery(key="alice", instance="w-1", id_part="ab"),
    UnfinishedRequests(requests=[ActiveRequest(is_known=True, request_id="r", instance="w-1")], is_whole=False),
    ServiceHealth(process="host:1", version="1.0", uptime_s=2.5, memory_bytes=1 << 30),
    WeightsRecord(model="demo", sha256="ab" * 32),
    CanaryRecord(tokens=pack_int32([3]), confidences=pack_float32([0.5])),
    CellConfig(
        model="demo", policy="dilaserve", thresholds=(0.5, 0.9), default_slo_s=2.5, cache="dual", predictor="v1"
    ),
]


DEEP = b'{"of a later version": ' + b"[" * 10_000 + b"]" * 10_000 + b"}"  # deeper than a reader can follow


def path_of(message: msgspec.Struct) -> Path:
    return DIRECTORY / f"{type(message).__name__}.msgpack"


@pytest.mark.parametrize("message", SAMPLES, ids=lambda message: type(message).__name__)
def test_a_message_stored_by_an_earlier_version_decodes_to_the_same_value(message: msgspec.Struct) -> None:
    assert decode(path_of(message).read_bytes(), type(message)) == message


@pytest.mark.parametrize(
    "message",
    [message for message in SAMPLES if not isinstance(message, Cancel)],  # anyone can have the bus send a reply there
    ids=lambda message: type(message).__name__,
)
def test_a_reader_ignores_fields_it_does_not_know(message: msgspec.Struct) -> None:
    raw = msgspec.msgpack.decode(path_of(message).read_bytes()) | {"added_later": [1, 2]}
    assert decode(msgspec.msgpack.encode(raw), type(message)) == message


@pytest.mark.parametrize("message", SAMPLES[:2], ids=lambda message: type(message).__name__)
def test_requests_and_outcomes_are_the_same_in_json(message: msgspec.Struct) -> None:
    assert decode(encode(message, json=True), type(message)) == message


@pytest.mark.parametrize("data", [b"", b"\xc1", b"{", b"[]", b"\x01", b'"x"', b"\x93\x01\x02\x03", DEEP])
@pytest.mark.parametrize("kind", [type(message) for message in SAMPLES], ids=lambda kind: kind.__name__)
def test_an_undecodable_message_is_bad_input(kind: type[msgspec.Struct], data: bytes) -> None:
    with pytest.raises(BadInput, match=kind.__name__):
        decode(data, kind)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("request_id", "a\n"),
        ("seed", 2**63),
        ("slo_s", math.inf),
        ("age_s", math.nan),
        ("age_s", -1.0),
        ("top_p", 1.5),
        ("top_p", math.nan),
        ("top_k", -2),
        ("min_p", -0.5),
        ("presence_penalty", math.nan),
        ("repetition_penalty", 0.0),
    ],
)
def test_a_request_with_an_unusable_value_is_bad_input(field: str, value: object) -> None:
    with pytest.raises(BadInput) as refused:
        decode(msgspec.msgpack.encode({"request_id": "a", "prompt": "x", field: value}), Request)
    assert refused.value.field == field


if __name__ == "__main__":
    for sample in SAMPLES:
        if not path_of(sample).exists():
            path_of(sample).write_bytes(encode(sample))
