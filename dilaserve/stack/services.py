"""The services of a stack as programs: each `python -m services.NAME` with its settings in DILASERVE_*."""

import os
import sys

from dilaserve.stack.options import StackOptions
from dilaserve.stack.process import Program
from shared.settings import to_environ

STOP_ORDER = ("gateway", "scheduler", "predictor", "worker", "reconfigurator", "postgres", "nats")


def serving_programs(options: StackOptions, nats_url: str) -> list[Program]:
    """What serves requests: one gateway, one scheduler, one worker an instance, and the step predictor where
    the policy asks it."""
    common = {"nats_url": nats_url, "model": options.model, "model_name": options.model_name}
    gateway = {**common, "host": options.host, "port": options.port}
    scheduler = {
        **common,
        "policy": options.policy,
        "threshold": options.thresholds[-1],
        "thresholds": options.thresholds,
        "cache": options.cache,
        "default_slo_s": options.slo_s,
    }
    workers = [
        _program(
            "worker",
            {
                **common,
                "instance": f"worker-{number}",
                "tp": tp_degree,
                "threads": options.threads_per_slot,
                "cache": options.cache,
                "dtype": os.environ.get("DILASERVE_DTYPE", "float32"),  # the same text in company as alone
            },
            f"worker-{number}",
        )
        for number, tp_degree in enumerate(options.instances)
    ]
    predictors = [_program("predictor", common)] if options.policy == "dilaserve" else []
    return [_program("gateway", gateway), _program("scheduler", scheduler), *predictors, *workers]


def reconfigurator_program(nats_url: str, database_url: str) -> Program:
    return _program("reconfigurator", {"nats_url": nats_url, "database_url": database_url})


def _program(service: str, settings: dict[str, object], name: str | None = None) -> Program:
    return Program(
        name=name or service,
        command=(sys.executable, "-m", f"services.{service}"),
        environ={**to_environ(settings), "PYTHONUNBUFFERED": "1"},
    )
