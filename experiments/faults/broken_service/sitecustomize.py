"""Python imports this module at its start if its folder is on PYTHONPATH. It breaks a service as DILASERVE_BROKEN asks.

`worker:nan` (confidences that are not numbers), `worker:random` (other tokens), `worker:hang`, `SERVICE:clock` (an hour
ahead) and `SERVICE:clock-behind` (ten minutes) begin at SIGUSR1. `worker:poison-crash`, `worker:poison-error`,
`worker:poison-hang` and `worker:poison-reading` always hold for requests with POISON_SEED.
"""

import os
import signal
import sys
import time
from dataclasses import replace
from typing import Any

POISON_SEED = 666
CLOCK_AHEAD_S = {"clock": 3600.0, "clock-behind": -600.0}

SERVICE, _, HOW = os.environ.get("DILASERVE_BROKEN", ":").partition(":")


def break_service(*_: object) -> None:
    """Replace the clock, or the model's forward by a wrong one."""
    if HOW in CLOCK_AHEAD_S:
        now = time.time
        time.time = lambda: now() + CLOCK_AHEAD_S[HOW]
        return
    from services.worker.model.model_runner import Runner, TokenPredictions  # noqa: PLC0415  (only in a worker)

    run = Runner.run

    def wrong(runner: Runner, batch: Any) -> TokenPredictions:
        is_poison = HOW.startswith("poison")
        if is_poison and POISON_SEED not in batch.seeds:
            return run(runner, batch)
        if HOW == "poison-crash":
            os._exit(1)
        if HOW == "poison-error":
            raise ValueError("this request cannot be computed")
        if HOW in {"hang", "poison-hang"}:
            time.sleep(3600)
        found = run(runner, batch)
        if HOW == "nan":
            return replace(found, confidences=found.confidences * float("nan"))
        return replace(found, tokens=(found.tokens * 7 + 11) % runner.config.vocab_size)

    Runner.run = wrong  # type: ignore[method-assign, assignment]


def break_reading() -> None:
    """Have the worker raise an error after the forward of a poison request."""
    from services.worker.engine import engine, readers  # noqa: PLC0415

    def refuse(ran: Any) -> None:
        if any(part.sequence.seed == POISON_SEED for part in ran.parts):
            raise IndexError("list index out of range")

    vars(engine)["READERS"] = (refuse, *readers.READERS)


if f"services.{SERVICE}" in sys.orig_argv:
    if HOW == "poison-reading":
        break_reading()
    elif HOW.startswith("poison"):
        break_service()
    else:
        signal.signal(signal.SIGUSR1, break_service)
