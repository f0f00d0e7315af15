"""The programs of a stack's services: `python -m services.NAME` with settings in DILASERVE_*."""

import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from dilaserve.stack.nats import store_dir
from dilaserve.stack.options import NODE, TP_DEGREES, Stack
from dilaserve.stack.process import Program
from services.gateway.settings import GatewaySettings
from services.predictor.settings import PredictorSettings
from services.reconfigurator.settings import ReconfiguratorSettings
from services.scheduler.settings import SchedulerSettings
from services.worker.settings import WorkerSettings
from shared import predictor_card
from shared.bus.users import BusUser
from shared.messages.cell import CellConfig
from shared.messages.launch import InstanceSpec
from shared.profile import read_profile
from shared.settings import PREFIX, ServiceSettings, to_environ

SETTINGS: Mapping[BusUser, type[ServiceSettings]] = {
    BusUser.GATEWAY: GatewaySettings,
    BusUser.SCHEDULER: SchedulerSettings,
    BusUser.PREDICTOR: PredictorSettings,
    BusUser.WORKER: WorkerSettings,
    BusUser.RECONFIGURATOR: ReconfiguratorSettings,
}
NatsUrls = Mapping[str, str]  # the URL of the bus for each of its users
STOP_ORDER = ("gateway", "scheduler", "predictor", "worker", "reconfigurator", "postgres", "nats")


def option_settings(service: BusUser, stack: Stack) -> dict[str, object]:
    """The options of `dilaserve up` that are settings of the service, by name."""
    given = {option: getattr(stack.options, option) for option in stack.options.__dataclass_fields__}
    given |= {"model": stack.model, "model_name": stack.model_name, "auth": stack.auth}
    names = {field.name for field in msgspec.structs.fields(SETTINGS[service])}
    return {option: value for option, value in given.items() if option in names}


def predictor_directory(stack: Stack) -> Path:
    """Where the services look for the step predictor."""
    named = stack.options.predictor or os.environ.get(f"{PREFIX}PREDICTOR", "")
    return predictor_card.predictor_directory(str(named), stack.model)


def gateway_programs(
    stack: Stack, nats_urls: NatsUrls, database_url: str, listener: socket.socket | None
) -> list[Program]:
    """The gateways; several share `listener`. They watch the disk of the embedded NATS servers."""
    descriptors = () if listener is None else (listener.fileno(),)
    options = stack.options
    own: dict[str, Any] = {"database_url": database_url, "listener_fd": descriptors[0] if descriptors else None}
    if not options.nats_url:
        own["bus_store_dir"] = str(store_dir(options.data_dir, options.nats_nodes))
    return [
        replace(_program(BusUser.GATEWAY, stack, nats_urls, name, **own), descriptors=descriptors)
        for name in stack.gateways
    ]


def serving_programs(stack: Stack, config: CellConfig, nats_urls: NatsUrls) -> list[Program]:
    """One or two schedulers, one worker per instance, and the step predictor if the cell has one."""
    replicas = None if stack.options.nats_url else stack.options.nats_nodes
    programs = [
        _program(BusUser.SCHEDULER, stack, nats_urls, name, stream_replicas=replicas) for name in stack.schedulers
    ]
    if config.predictor:
        programs.append(_program(BusUser.PREDICTOR, stack, nats_urls))
    return [*programs, *(worker_program(stack, nats_urls, spec) for spec in stack.specs)]


def worker_program(stack: Stack, nats_urls: NatsUrls, spec: InstanceSpec) -> Program:
    """The worker of one instance; its GPU numbers are slots."""
    return _program(
        BusUser.WORKER,
        stack,
        nats_urls,
        spec.name,
        instance=spec.name,
        node=spec.node,
        gpus=spec.gpus,
        tp=spec.tp,
        threads=os.environ.get("DILASERVE_THREADS", stack.threads_per_slot),
        metrics_port=stack.metrics_ports.get(f"slot-{spec.gpus[0]}", 0),
    )


def reconfigurator_program(stack: Stack, nats_urls: NatsUrls, database_url: str) -> Program:
    own: dict[str, Any] = {"database_url": database_url}
    known = read_profile(stack.options.profile).tp_degrees if stack.options.profile else TP_DEGREES
    own["tp_degrees"] = [tp for tp in TP_DEGREES if tp <= stack.slots and tp in known]  # workers refuse others
    if stack.reconfigures:
        own |= {"launcher": "process", "nodes": f"{NODE}:{stack.slots}"}
    return _program(BusUser.RECONFIGURATOR, stack, nats_urls, **own)


def _program(service: BusUser, stack: Stack, nats_urls: NatsUrls, name: str | None = None, **own: Any) -> Program:
    """The program of a service, with the options that are settings of it, and with its `own` settings."""
    # 0 without --metrics-port, in place of DILASERVE_METRICS_PORT, which all would share
    ours = {"nats_url": nats_urls[service], "metrics_port": stack.metrics_ports.get(name or service, 0), **own}
    return Program(
        name=name or service,
        command=(sys.executable, "-m", f"services.{service}"),
        environ={**to_environ(option_settings(service, stack) | ours), "PYTHONUNBUFFERED": "1"},
    )
