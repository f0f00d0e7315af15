"""Turns messages into rows of Postgres."""

from datetime import UTC, datetime
from typing import Any

import msgspec

from services.reconfigurator.planning.workload_stats import request_class
from shared.database.schema import ACTIVE, PlanRow, RequestRow
from shared.errors import BadInput
from shared.messages.plans import PlanRecord
from shared.messages.requests import Arrival, Outcome, ServingStats

Row = dict[str, Any]
# The columns that are fields of the statistics, null for an outcome without statistics
STATS_COLUMNS = [f.name for f in msgspec.structs.fields(ServingStats) if f.name in RequestRow.__table__.columns]


def arrival_row(arrival: Arrival) -> Row:
    """Raises: BadInput if its arrival time is invalid."""
    return {**_request_row(arrival), "status": ACTIVE, "completion_tokens": 0, "slo_s": arrival.slo_s, "instances": []}


def outcome_row(outcome: Outcome) -> Row:
    """Raises: BadInput if its arrival time is invalid."""
    stats = outcome.stats
    thresholds = stats.thresholds if stats else []
    return {
        **_request_row(outcome),
        "status": outcome.status.value,
        "completion_tokens": outcome.completion_tokens,
        **{name: getattr(stats, name, None) for name in STATS_COLUMNS},
        "thresholds": [use.threshold for use in thresholds],
        "threshold_steps": [use.steps for use in thresholds],
        "threshold_tokens": [use.tokens for use in thresholds],
        "instances": stats.instances if stats else [],
        "error": outcome.error.message if outcome.error else None,
    }


def plan_row(record: PlanRecord) -> Row:
    """Raises: BadInput if one of its times is invalid."""
    fields = msgspec.to_builtins(record, str_keys=True)
    return {
        **{name: value for name, value in fields.items() if name in PlanRow.__table__.columns},
        "decided_at": _time(record.decided_s, "decided_s"),
        "ended_at": None if record.ended_s is None else _time(record.ended_s, "ended_s"),
        "inputs": {name: fields[name] for name in ("classes", "tokens_per_step", "before")},
    }


def _request_row(message: Arrival | Outcome) -> Row:
    prompt, output = message.prompt_tokens, message.output_tokens
    return {
        "request_id": message.request_id,
        "arrived_at": _time(message.arrival_s, "arrival_s"),
        "request_class": request_class(prompt, output) if output else None,
        "prompt_tokens": prompt,
        "output_tokens": output,
    }


def _time(unix_s: float, field: str) -> datetime:
    try:
        return datetime.fromtimestamp(unix_s, UTC)
    except (ValueError, OverflowError, OSError):
        raise BadInput(f"{field} {unix_s} is not a time", field) from None
