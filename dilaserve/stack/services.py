"""The programs of a stack's services: `python -m services.NAME` with settings in DILASERVE_*."""

import os
import sys
from collections.abc import Mapping

from dilaserve.stack.options import METRICS_ORDER, NODE, TP_DEGREES, StackOptions
from dilaserve.stack.process import Program
from services.scheduler.registry import find_policy
from shared.bus.users import BusUser
from shared.messages.launch import InstanceSpec
from shared.settings import to_environ

NatsUrls = Mapping[str, str]  # the URL of the bus for each of its users
STOP_ORDER = ("gateway", "scheduler", "predictor", "worker", "reconfigurator", "postgres", "nats")


def serving_programs(options: StackOptions, nats_urls: NatsUrls, database_url: str) -> list[Program]:
    """The gateway, one or two schedulers, one worker per instance, and the step predictor if the policy uses it."""
    gateway = _common(options, nats_urls[BusUser.GATEWAY])
    gateway |= {
        "host": options.host,
        "port": options.port,
        "default_slo_s": options.slo_s,
        "database_url": database_url,
    }
    gateway |= {"auth": options.auth, "shed": options.shed}
    gateway |= {"tls_certificate": options.tls_certificate or "", "tls_key": options.tls_key or ""}
    scheduler = _common(options, nats_urls[BusUser.SCHEDULER])
    scheduler |= {
        "metrics_port": _metrics_port(options, "scheduler"),
        "policy": options.policy,
        "threshold": options.thresholds[-1],
        "thresholds": options.thresholds,
        "cache": options.cache,
        "default_slo_s": options.slo_s,
    }
    schedulers = [_program("scheduler", scheduler)]
    if options.standby:
        standby = scheduler | {"metrics_port": options.metrics_ports[-1] if options.metrics_ports else 0}
        schedulers.append(_program("scheduler", standby, "scheduler-2"))
    workers = [worker_program(options, nats_urls[BusUser.WORKER], spec) for spec in options.specs]
    predictor = _common(options, nats_urls[BusUser.PREDICTOR])
    predictor |= {"metrics_port": _metrics_port(options, "predictor")}
    predictors = [_program("predictor", predictor)] if find_policy(options.policy).uses_estimates else []
    return [_program("gateway", gateway), *schedulers, *predictors, *workers]


def worker_program(options: StackOptions, nats_url: str, spec: InstanceSpec) -> Program:
    """The worker of one instance; its GPU numbers are slots."""
    settings = {
        "instance": spec.name,
        "node": spec.node,
        "gpus": spec.gpus,
        "tp": spec.tp,
        "threads": os.environ.get("DILASERVE_THREADS", options.threads_per_slot),
        "cache": options.cache,
        "profile": options.profile,
        "metrics_port": _metrics_port(options, "worker", spec.gpus[0]),
        "device": options.device,
        "dtype": options.dtype,
    }
    return _program("worker", _common(options, nats_url) | settings, spec.name)


def reconfigurator_program(options: StackOptions, nats_url: str, database_url: str) -> Program:
    policy = find_policy(options.policy)
    settings: dict[str, object] = {
        "nats_url": nats_url,
        "database_url": database_url,
        "metrics_port": _metrics_port(options, "reconfigurator"),
        "profile": options.profile,
        "tp_degrees": [tp for tp in TP_DEGREES if tp <= options.slots],
        "predictor": options.model / "predictor" if policy.uses_estimates else None,
        "thresholds": options.thresholds[-1:] if policy.one_threshold else options.thresholds,
        "cache": options.cache,
    }
    if options.reconfigure:
        settings |= {"launcher": "process", "nodes": f"{NODE}:{options.slots}"}
    return _program("reconfigurator", settings)


def _common(options: StackOptions, nats_url: str) -> dict[str, object]:
    return {"nats_url": nats_url, "model": options.model, "model_name": options.model_name}


def _metrics_port(options: StackOptions, service: str, slot: int = 0) -> int:
    """The port of a service; 0 without --metrics-port, in place of DILASERVE_METRICS_PORT, which all would share."""
    return options.metrics_ports[METRICS_ORDER.index(service) + slot] if options.metrics_ports else 0


def _program(service: str, settings: dict[str, object], name: str | None = None) -> Program:
    return Program(
        name=name or service,
        command=(sys.executable, "-m", f"services.{service}"),
        environ={**to_environ(settings), "PYTHONUNBUFFERED": "1"},
    )
