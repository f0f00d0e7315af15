"""The programs of a stack's services: `python -m services.NAME` with settings in DILASERVE_*."""

import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
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


@dataclass(frozen=True, slots=True)
class StackPrograms:
    """The programs of a stack's services, with the URLs of its servers."""

    stack: Stack
    nats_urls: NatsUrls
    database_url: str

    def gateways(self, listener: socket.socket | None) -> list[Program]:
        """The gateways; several share `listener`. They watch the disk of the embedded NATS servers."""
        descriptors = () if listener is None else (listener.fileno(),)
        options = self.stack.options
        own: dict[str, Any] = {"database_url": self.database_url, "listener_fd": next(iter(descriptors), None)}
        if not options.nats_url:
            own["bus_store_dir"] = str(store_dir(options.data_dir, options.nats_nodes))
        programs = [self._program(BusUser.GATEWAY, name, **own) for name in self.stack.gateways]
        return [replace(program, descriptors=descriptors) for program in programs]

    def serving(self, config: CellConfig) -> list[Program]:
        """One or two schedulers, one worker per instance, and the step predictor if the cell has one."""
        options, schedulers = self.stack.options, self.stack.schedulers
        replicas = None if options.nats_url else options.nats_nodes
        programs = [self._program(BusUser.SCHEDULER, name, stream_replicas=replicas) for name in schedulers]
        if config.predictor:
            programs.append(self._program(BusUser.PREDICTOR))
        return [*programs, *map(self.worker, self.stack.specs)]

    def worker(self, spec: InstanceSpec) -> Program:
        """The worker of one instance; its GPU numbers are slots."""
        own = {"instance": spec.name, "node": spec.node, "gpus": spec.gpus, "tp": spec.tp}
        own["threads"] = os.environ.get("DILASERVE_THREADS", self.stack.threads_per_slot)
        own["metrics_port"] = self.stack.metrics_ports.get(f"slot-{spec.gpus[0]}", 0)
        return self._program(BusUser.WORKER, spec.name, **own)

    def reconfigurator(self) -> Program:
        stack, own = self.stack, dict[str, Any](database_url=self.database_url)
        known = read_profile(stack.options.profile).tp_degrees if stack.options.profile else TP_DEGREES
        own["tp_degrees"] = [tp for tp in TP_DEGREES if tp <= stack.slots and tp in known]  # workers refuse others
        if stack.reconfigures:
            own |= {"launcher": "process", "nodes": f"{NODE}:{stack.slots}"}
        return self._program(BusUser.RECONFIGURATOR, **own)

    def _program(self, service: BusUser, name: str = "", **own: Any) -> Program:
        """The program of a service, with the options that are settings of it, and with its `own` settings."""
        name = name or service
        # 0 without --metrics-port, in place of DILASERVE_METRICS_PORT, which all would share
        ours = {"nats_url": self.nats_urls[service], "metrics_port": self.stack.metrics_ports.get(name, 0), **own}
        return Program(
            name=name,
            command=(sys.executable, "-m", f"services.{service}"),
            environ={**to_environ(option_settings(service, self.stack) | ours), "PYTHONUNBUFFERED": "1"},
        )
