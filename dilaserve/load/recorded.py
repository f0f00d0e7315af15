"""The requests that a cell has served, read from Postgres, for the simulator."""

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import numpy as np
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from services.reconfigurator.monitoring.recent_workload import threshold_uses
from services.reconfigurator.planning.workload_stats import tokens_per_step
from shared.database.schema import RequestRow
from shared.errors import BadInput
from shared.messages.requests import DEFAULT_BLOCK_LENGTH, OutcomeStatus
from shared.text import round_up_to_blocks
from simulator.result import Records
from simulator.steps_table import StepsTable
from simulator.unmasking_model import NUM_THRESHOLDS
from simulator.workload import ArrivalTrace, make_trace

UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def read_span_s(option: str, text: str) -> float:
    """Seconds of a text such as 90s, 30m, 1h or 2d. Raises: BadInput."""
    number, unit = text[:-1], text[-1:]
    with suppress(ValueError, KeyError):
        span_s = float(number) * UNITS_S[unit]
        if 0 < span_s <= 366 * UNITS_S["d"]:
            return span_s
    raise BadInput(f"{option} {text}: accepted: a number and s, m, h or d, such as 1h, up to a year")


class RecordedLoad:
    """Completed and failed requests, in the order of arrival; the output is what was unmasked, in whole blocks."""

    def __init__(self, rows: Sequence[RequestRow]) -> None:
        first = rows[0].arrived_at
        outputs = [row.unmasked_tokens or row.output_tokens for row in rows]
        self.trace: ArrivalTrace = make_trace(
            np.array([(row.arrived_at - first).total_seconds() for row in rows]),
            np.array([row.prompt_tokens for row in rows]),
            np.array([round_up_to_blocks(output, DEFAULT_BLOCK_LENGTH) for output in outputs]),
        )
        self.trace.slo_s[:] = [row.slo_s for row in rows]
        self._rows, self._uses = rows, threshold_uses(rows)

    @property
    def served(self) -> Records:
        """How the cell served them."""
        records = Records(self.trace.slo_s.copy())
        for i, row in enumerate(self._rows):
            if row.status == OutcomeStatus.COMPLETED and row.latency_s is not None:
                records.latency_s[i], records.mean_threshold[i] = row.latency_s, row.mean_threshold
                records.steps[i], records.migrations[i] = row.steps or 0, row.migrations or 0
        for use in self._uses:
            records.tokens_at[round(use.threshold * (NUM_THRESHOLDS - 1))] += use.tokens
        return records

    def steps_table(self, thresholds: tuple[float, ...]) -> StepsTable:
        """The mean tokens of a step at each threshold, as observed. Raises: BadInput if too few steps were recorded."""
        if not (known := tokens_per_step(self._uses, thresholds, {})):
            raise BadInput("--steps: too few steps are recorded to know the tokens per step; give a STEPS.csv")
        rates = np.maximum(np.minimum.accumulate([known[threshold] for threshold in sorted(known)]), 1.0)
        return StepsTable(np.array(sorted(known)), rates)


async def read_recorded(engine: AsyncEngine, last_s: float) -> RecordedLoad:
    """The requests that arrived in the last `last_s` and have ended. Raises: BadInput if there are none."""
    since = datetime.now(UTC) - timedelta(seconds=last_s)
    row = RequestRow
    ended = row.status.in_([OutcomeStatus.COMPLETED, OutcomeStatus.FAILED]) & row.slo_s.is_not(None)
    query = select(row).where(row.arrived_at >= since, ended).order_by(row.arrived_at)
    async with AsyncSession(engine) as session:
        found = (await session.scalars(query)).all()
    if not found:
        raise BadInput(f"--last: no request that arrived in the last {last_s:g} s has ended")
    return RecordedLoad(found)
