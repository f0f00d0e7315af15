"""Generates docs/asyncapi.json, the AsyncAPI 3 document of the bus, from message types and subjects."""

import inspect
import json
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import msgspec

from shared.bus.subjects import Subjects
from shared.messages.cell import CellConfig
from shared.messages.checkpoints import Checkpoint
from shared.messages.gateway import BatchWork, GatewayUse
from shared.messages.health import ServiceHealth
from shared.messages.instances import Control
from shared.messages.launch import LaunchOrder, LaunchReply
from shared.messages.plans import PlanRecord, ReconfiguratorStats
from shared.messages.predict import PredictSteps, StepsLeft
from shared.messages.requests import (
    Arrival,
    Cancel,
    Guesses,
    Outcome,
    Progress,
    Request,
    UnfinishedQuery,
    UnfinishedRequests,
)
from shared.messages.stats import SchedulerStats
from shared.messages.steps import StepJobs, StepResults

Json = dict[str, Any]
SCHEMA = "#/components/schemas/{name}"
CELL = Subjects("{cell}")


@dataclass(frozen=True, slots=True)
class Channel:
    """A subject, its sender, message and reply."""

    name: str
    address: str
    sender: str
    message: type[msgspec.Struct]
    reply: type[msgspec.Struct] | None = None


CHANNELS = [
    Channel("requests", CELL.requests, "gateway or producer", Request),
    Channel("producerRequests", CELL.producer_requests("{producer}"), "named producer", Request),
    Channel("outcomes", CELL.outcomes("{request}"), "scheduler", Outcome),
    Channel("cancel", CELL.cancel("{request}"), "gateway or producer", Cancel),
    Channel("progress", CELL.progress("{request}"), "scheduler", Progress),
    Channel("guesses", CELL.guesses("{request}"), "worker", Guesses),
    Channel("stats", CELL.stats("scheduler"), "scheduler", SchedulerStats),
    Channel("arrivals", CELL.arrivals, "scheduler", Arrival),
    Channel("steps", CELL.steps("{instance}"), "scheduler", StepJobs),
    Channel("stepResults", CELL.step_results("{instance}"), "worker", StepResults),
    Channel("predict", CELL.predict, "scheduler", PredictSteps, StepsLeft),
    Channel("checkpoints", CELL.checkpoints("{request}"), "scheduler", Checkpoint),
    Channel("control", CELL.control("{instance}"), "reconfigurator", Control),
    Channel("plans", CELL.plans("{plan}"), "reconfigurator", PlanRecord),
    Channel("reconfiguratorStats", CELL.stats("reconfigurator"), "reconfigurator", ReconfiguratorStats),
    Channel("launch", CELL.launch("{node}"), "reconfigurator", LaunchOrder, LaunchReply),
    Channel("batches", CELL.batches, "gateway", BatchWork),
    Channel("config", CELL.config, "scheduler", CellConfig),
    Channel("keyUse", CELL.key_use, "gateway", GatewayUse),
    Channel("unfinished", CELL.unfinished, "gateway", UnfinishedQuery, UnfinishedRequests),
    Channel("health", CELL.health("{service}"), "a service", ServiceHealth),
]
PARAMETERS = {
    "cell": "the cell, as DILASERVE_CELL names it",
    "producer": "the name of the producer, as `dilaserve bus-users --producers` has it",
    "request": "the request_id; of a named producer PRODUCER.REQUEST_ID, two tokens",
    "instance": "the instance_id",
    "plan": "the plan_id",
    "service": "gateway, scheduler, predictor or reconfigurator",
    "node": "the node's name, its dots written as _",
}


def document() -> Json:
    """The document as plain data. Operations are the sender's."""
    kinds = [kind for channel in CHANNELS for kind in (channel.message, channel.reply) if kind is not None]
    _, schemas = msgspec.json.schema_components(kinds, ref_template=SCHEMA)
    for schema in schemas.values():
        if "description" in schema:  # a docstring, which Python 3.13 stores without its indentation
            schema["description"] = inspect.cleandoc(schema["description"])
    operations: Json = {}
    channels: Json = {}
    for channel in CHANNELS:
        address, messages = channel.address, _refs(channel.message)
        parameters = {
            name: {"description": meaning} for name, meaning in PARAMETERS.items() if f"{{{name}}}" in address
        }
        channels[channel.name] = {"address": address, "messages": messages, "parameters": parameters}
        operations[f"send-{channel.name}"] = operation = _operation(channel)
        if channel.reply is not None:  # its address is the sender's inbox
            reply = f"{channel.name}Reply"
            channels[reply] = {"address": None, "messages": _refs(channel.reply)}
            operation["reply"] = {"channel": {"$ref": f"#/channels/{reply}"}}
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "DiLaServe on NATS",
            "version": version("dilaserve"),
            "description": "Messages of one cell. Requests, outcomes and cancels are MessagePack or JSON, others "
            "MessagePack. Bytes are raw in MessagePack, base64 in JSON. Readers ignore fields they do not know.",
        },
        "defaultContentType": "application/msgpack",
        "channels": channels,
        "operations": operations,
        "components": {"messages": {kind.__name__: _message(kind) for kind in kinds}, "schemas": schemas},
    }


def text() -> str:
    return json.dumps(document(), indent=2, ensure_ascii=False) + "\n"


def _operation(channel: Channel) -> Json:
    return {
        "action": "send",
        "summary": f"by: {channel.sender}",
        "channel": {"$ref": f"#/channels/{channel.name}"},
        "messages": [{"$ref": f"#/channels/{channel.name}/messages/{channel.message.__name__}"}],
    }


def _refs(kind: type[msgspec.Struct]) -> Json:
    return {kind.__name__: {"$ref": f"#/components/messages/{kind.__name__}"}}


def _message(kind: type[msgspec.Struct]) -> Json:
    summary = (inspect.getdoc(kind) or "").split("\n", 1)[0]
    return {"name": kind.__name__, "summary": summary, "payload": {"$ref": SCHEMA.format(name=kind.__name__)}}
