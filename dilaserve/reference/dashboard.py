"""The Grafana dashboard, made from a table of its panels."""

import json
from dataclasses import dataclass
from itertools import chain
from typing import Any

Json = dict[str, Any]
SOURCE = {"type": "prometheus", "uid": "prometheus"}  # as compose/grafana/datasource.yml names it
WIDTH, HEIGHT, ACROSS = 8, 7, 3  # of a panel in Grafana's grid; panels side by side
SCHEDULER, WORKER, PREDICTOR = "dilaserve_scheduler", "dilaserve_worker", "dilaserve_predictor"
RECONFIGURATOR, GATEWAY = "dilaserve_reconfigurator", "dilaserve_gateway"


@dataclass(frozen=True, slots=True)
class Panel:
    """A chart over time. `unit` is one of Grafana's; `queries` are PromQL by legend."""

    title: str
    unit: str
    queries: dict[str, str]


def rate(counter: str) -> str:
    """A second, over as many scrapes as make sense at the zoom."""
    return f"rate({counter}[$__rate_interval])"


def mean(histogram: str, by: str = "") -> str:
    group = f" by ({by})" if by else ""
    return f"sum{group} ({rate(f'{histogram}_sum')}) / sum{group} ({rate(f'{histogram}_count')})"


def quantile(q: float, histogram: str, by: str = "le") -> str:
    return f"histogram_quantile({q}, sum by ({by}) ({rate(f'{histogram}_bucket')}))"


def quantiles(histogram: str, name: str = "") -> dict[str, str]:
    return {f"{name} p50".strip(): quantile(0.5, histogram), f"{name} p99".strip(): quantile(0.99, histogram)}


def each_worker(expression: str) -> dict[str, str]:
    """What is told by `instance`, an address, under the worker's own name."""
    return {"{{worker}}": f"({expression}) * on (instance) group_left (worker) {WORKER}_info"}


ATTAINMENT = (
    f"sum({rate(f'{SCHEDULER}_slo_met_total')})"
    f""" / sum({rate(f'{SCHEDULER}_requests_total{{outcome=~"completed|failed"}}')})"""
)
ROWS: dict[str, list[Panel]] = {
    "SLO and quality": [
        Panel("SLO attainment", "percentunit", {"met": ATTAINMENT}),
        Panel(
            "Mean threshold",
            "short",
            {"served": f"{SCHEDULER}_mean_threshold", "planned": f"{RECONFIGURATOR}_planned_mean_threshold"},
        ),
        Panel(
            "SLO slack at the end",
            "s",
            {f"p{p}": quantile(p / 100, f"{SCHEDULER}_slo_slack_seconds") for p in (1, 10, 50)},
        ),
        Panel("Latency", "s", quantiles(f"{GATEWAY}_latency_seconds")),
        Panel("First text of a stream", "s", quantiles(f"{GATEWAY}_first_text_seconds")),
        Panel(
            "Steps by threshold",
            "ops",
            {"{{threshold}}": f"sum by (threshold) ({rate(f'{SCHEDULER}_threshold_steps_total')})"},
        ),
    ],
    "Load": [
        Panel(
            "Requests",
            "reqps",
            {
                "arrived": f"sum({rate(f'{SCHEDULER}_arrivals_total')})",
                "{{outcome}}": f"sum by (outcome) ({rate(f'{GATEWAY}_requests_total')})",
            },
        ),
        Panel(
            "Requests active and deferred",
            "short",
            {"active": f"{SCHEDULER}_active_requests", "deferred": f"{SCHEDULER}_deferred_requests"},
        ),
        Panel("Load control: tokens to compute, and capacity", "short", {"{{of}}": f"{SCHEDULER}_load_tokens"}),
    ],
    "Scheduler": [
        Panel("Decision cycle", "s", quantiles(f"{SCHEDULER}_cycle_seconds")),
        Panel(
            "Bus delay",
            "s",
            quantiles(f"{WORKER}_jobs_delay_seconds", "jobs")
            | quantiles(f"{SCHEDULER}_results_delay_seconds", "results"),
        ),
        Panel("From arrival to the first step", "s", quantiles(f"{SCHEDULER}_first_step_seconds")),
        Panel("Steps", "ops", {"steps": f"sum({rate(f'{SCHEDULER}_steps_total')})"}),
        Panel("Steps in flight", "short", {"steps": f"{SCHEDULER}_steps_in_flight"}),
        Panel("Migrations", "ops", {"migrations": f"sum({rate(f'{SCHEDULER}_migrations_total')})"}),
    ],
    "Predictor": [
        Panel(
            "Steps of a request",
            "short",
            {
                "predicted": mean(f"{SCHEDULER}_request_predicted_steps"),
                "actual": mean(f"{SCHEDULER}_request_steps"),
                "recompute": mean(f"{SCHEDULER}_request_recompute_steps"),
                "cache": mean(f"{SCHEDULER}_request_cache_steps"),
            },
        ),
        Panel(
            "Prediction error, mean",
            "percentunit",
            {"output {{output}}": mean(f"{SCHEDULER}_prediction_error_ratio", "output")},
        ),
        Panel(
            "Prediction error, p90",
            "percentunit",
            {"output {{output}}": quantile(0.9, f"{SCHEDULER}_prediction_error_ratio", "output, le")},
        ),
        Panel("Estimates", "ops", {"{{source}}": f"sum by (source) ({rate(f'{SCHEDULER}_estimates_total')})"}),
        Panel("Time of a prediction", "s", quantiles(f"{PREDICTOR}_batch_seconds")),
        Panel("Requests predicted together", "short", {"mean": mean(f"{PREDICTOR}_batch_requests")}),
    ],
    "Workers": [
        Panel("Step time, mean", "s", each_worker(mean(f"{WORKER}_step_seconds", "instance"))),
        Panel("Step time, p99", "s", each_worker(quantile(0.99, f"{WORKER}_step_seconds", "instance, le"))),
        Panel("Batch, requests", "short", each_worker(mean(f"{WORKER}_batch_requests", "instance"))),
        Panel("Batch, tokens computed", "short", each_worker(mean(f"{WORKER}_batch_tokens", "instance"))),
        Panel("KV cache used", "percentunit", each_worker(f"{WORKER}_kv_cache_used_tokens / {WORKER}_kv_cache_tokens")),
        Panel("Tokens unmasked", "ops", each_worker(rate(f"{WORKER}_unmasked_tokens_total"))),
        Panel("Requests held", "short", each_worker(f"{WORKER}_held_requests")),
    ],
    "Plan": [
        Panel("Age of the last decision", "s", {"age": f"time() - {RECONFIGURATOR}_decided_timestamp_seconds"}),
        Panel(
            "Instances",
            "short",
            {"{{state}}": f"{SCHEDULER}_instances", "planned, TP {{tp_degree}}": f"{RECONFIGURATOR}_instances"},
        ),
        Panel(
            "Plans of the last hour",
            "short",
            {"{{state}} {{status}}": f"sum by (state, status) (increase({RECONFIGURATOR}_plans_total[1h]))"},
        ),
    ],
}


def document() -> Json:
    """The dashboard as plain data."""
    panels: list[Json] = []
    y = 0
    for row, charts in ROWS.items():
        panels.append({"type": "row", "title": row, "collapsed": False, "gridPos": _place(0, y, 24, 1), "panels": []})
        for i, chart in enumerate(charts):
            at = _place(i % ACROSS * WIDTH, y + 1 + i // ACROSS * HEIGHT, WIDTH, HEIGHT)
            panels.append(_panel(chart) | {"gridPos": at})
        y += 1 + -(-len(charts) // ACROSS) * HEIGHT
    return {
        "uid": "dilaserve",
        "title": "DiLaServe",
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "panels": [panel | {"id": number} for number, panel in enumerate(panels, start=1)],
    }


def expressions() -> list[str]:
    """Every query, as Grafana would send it but for its own variables."""
    panels = chain.from_iterable(ROWS.values())
    return [expression for panel in panels for expression in panel.queries.values()]


def text() -> str:
    """The dashboard as the file compose/grafana/dilaserve.json holds it."""
    return json.dumps(document(), indent=2) + "\n"


def _place(x: int, y: int, w: int, h: int) -> Json:
    return {"x": x, "y": y, "w": w, "h": h}


def _panel(panel: Panel) -> Json:
    return {
        "type": "timeseries",
        "title": panel.title,
        "datasource": SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + i), "datasource": SOURCE, "expr": expression, "legendFormat": legend}
            for i, (legend, expression) in enumerate(panel.queries.items())
        ],
    }
