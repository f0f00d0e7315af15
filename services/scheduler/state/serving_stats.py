"""A request's serving statistics, computed from its row."""

from collections.abc import Sequence

from services.scheduler.state.request_table import RequestTable
from shared.messages.requests import ServingStats, ThresholdUse

COLUMNS = ("steps", "recompute_steps", "slo_s", "step_s", "migrations", "cached_tokens", "edits")  # of the table


def serving_stats(table: RequestTable, row: int, candidates: Sequence[float], now_s: float) -> ServingStats | None:
    """`candidates` are the thresholds [c], ascending; now_s is Unix time in seconds.

    Returns: None if no token is unmasked.
    """
    unmasked = int(table.free_tokens[row] - table.masks_left[row])
    if unmasked == 0:
        return None
    latency_s = now_s - float(table.arrival_s[row])
    return ServingStats(
        **{name: getattr(table, name).item(row) for name in COLUMNS},
        mean_threshold=float(table.threshold_tokens[row]) / unmasked,
        min_threshold=float(table.lowest_threshold[row]),
        latency_s=latency_s,
        unmasked_tokens=unmasked,
        thresholds=[
            ThresholdUse(threshold=threshold, steps=int(steps), tokens=int(tokens))
            for threshold, steps, tokens in zip(candidates, table.steps_at[row], table.tokens_at[row], strict=True)
            if steps
        ],
        predicted_steps=float(table.predicted_steps[row]) or None,
        slo_met=latency_s <= float(table.slo_s[row]),
        slo_feasible=not table.infeasible[row],
        instances=list(table.entry(row).served_by),
    )
