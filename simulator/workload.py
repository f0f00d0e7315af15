"""Arrivals and lengths: trace files, the compressed day of the real-world trace, benchmarks at a constant rate."""

import csv
import gzip
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shared.api_keys import MAX_PRIORITY
from shared.arrays import Float64, Int64
from shared.errors import BadInput
from shared.messages.requests import MAX_KEY_LENGTH
from shared.text import round_up_to_blocks
from simulator.lengths import BLOCK, CSV_ERRORS, Lengths

StrArray = NDArray[np.str_]
COLUMNS = ("arrival_s", "prompt_tokens", "output_tokens")
HOUR_S = 300.0  # length of a compressed hour of the day
# Requests per second by hour of day, highest scaled to 1: BurstGPT's conversation logs, median over days (Wang et al.,
# "BurstGPT", figure 4; CC BY 4.0). Of its profiles this one has the paper's ratio of mean to peak.
DAY = np.array(
    [0.25980, 0.16820, 0.08355, 0.04544, 0.03408, 0.03298, 0.03298, 0.02932, 0.10224, 0.52034, 0.81752, 0.82778,
     0.34775, 0.48040, 0.81312, 0.98535, 1.00000, 0.72921, 0.42800, 0.54929, 0.64529, 0.59692, 0.53463, 0.43972]
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ArrivalTrace:
    """Requests in the order of arrival. Shapes: all [n]. Units: seconds from the start; tokens, output in blocks."""

    arrival_s: Float64
    prompt_tokens: Int64
    output_tokens: Int64
    slo_s: Float64  # nan: the cluster's default
    priority: Int64
    key: StrArray  # name of the request's API key; empty: none

    def __len__(self) -> int:
        return len(self.arrival_s)


def real_world_trace(lengths: Lengths, peak_rps: float, random: np.random.Generator) -> ArrivalTrace:
    """A day in two hours: Poisson arrivals whose rate is constant in each compressed hour.

    Source: "Experimental Setup", Benchmark and Workloads. Lengths are drawn with replacement.
    """
    return varying_rate_trace(lengths, DAY * peak_rps, HOUR_S, random)


def varying_rate_trace(lengths: Lengths, rates: Float64, period_s: float, random: np.random.Generator) -> ArrivalTrace:
    """Poisson arrivals at each rate [periods], in requests/s, for a period; lengths are drawn with replacement."""
    counts = random.poisson(rates * period_s)
    starts = np.repeat(np.arange(len(rates)) * period_s, counts)
    arrival_s = np.sort(starts + random.uniform(0.0, period_s, len(starts)))
    prompts, outputs = lengths.draw(random, len(arrival_s))
    return make_trace(arrival_s, prompts, outputs)


def constant_rate_trace(lengths: Lengths, rps: float, random: np.random.Generator, copies: int = 1) -> ArrivalTrace:
    """Every sample `copies` times, in random order, with Poisson arrivals."""
    order = random.permutation(np.tile(np.arange(len(lengths.prompt_tokens)), copies))
    arrival_s = np.cumsum(random.exponential(1.0 / rps, len(order)))
    return make_trace(arrival_s, lengths.prompt_tokens[order], lengths.output_tokens[order])


def make_trace(arrival_s: Float64, prompt_tokens: Int64, output_tokens: Int64) -> ArrivalTrace:
    """Requests without SLO, priority or key of their own."""
    n = len(arrival_s)
    slo_s, priority, key = np.full(n, np.nan), np.zeros(n, dtype=np.int64), np.full(n, "")
    return ArrivalTrace(arrival_s, prompt_tokens, output_tokens, slo_s, priority, key)


def sorted_by_arrival(parts: Sequence[ArrivalTrace]) -> ArrivalTrace:
    """The requests of all parts in one trace."""
    order = np.concatenate([part.arrival_s for part in parts]).argsort(kind="stable")
    columns = (np.concatenate([getattr(part, column.name) for part in parts]) for column in fields(ArrivalTrace))
    return ArrivalTrace(*(column[order] for column in columns))


def read_trace(path: Path) -> ArrivalTrace:
    """Read a TRACE.csv or .csv.gz; outputs are rounded up to whole blocks. Raises: BadInput naming file and line."""
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8-sig")
        rows = _read_rows(csv.DictReader(io.StringIO(text)))
    except BadInput as error:
        raise BadInput(f"{path}: {error.message}", "trace") from None
    except CSV_ERRORS as error:
        raise BadInput(f"cannot read the trace {path}: {error}", "trace") from None
    return ArrivalTrace(*(np.array(column) for column in zip(*rows, strict=True)))


MAX_TOKENS = 1_000_000  # length of a prompt or an output, beyond all models
MAX_ARRIVAL_S = 366 * 86_400.0  # a year; later arrivals are probably Unix times
Row = tuple[float, int, int, float, int, str]  # the columns of an ArrivalTrace


def _read_rows(reader: "csv.DictReader[str]") -> list[Row]:
    if missing := [name for name in COLUMNS if name not in (reader.fieldnames or ())]:
        raise BadInput(f"a trace needs the columns {','.join(COLUMNS)}; missing: {','.join(missing)}")
    rows = [_read_row(row, line) for line, row in enumerate(reader, start=2)]
    if not rows:
        raise BadInput("the trace has no requests")
    return sorted(rows, key=lambda row: row[0])


def _read_row(row: Mapping[str, str | None], line: int) -> Row:
    try:
        arrival_s, slo_s = float(row["arrival_s"] or ""), float(row.get("slo_s") or "nan")
        prompt, output = int(row["prompt_tokens"] or ""), int(row["output_tokens"] or "")
        priority = int(row.get("priority") or 0)
    except ValueError as error:
        raise BadInput(f"line {line}: {error}") from None
    if not (0 <= arrival_s < np.inf and prompt >= 0 and output >= 1 and not slo_s <= 0):
        raise BadInput(f"line {line}: arrival_s and prompt_tokens must be at least 0, output_tokens and slo_s above 0")
    if arrival_s > MAX_ARRIVAL_S:
        raise BadInput(f"line {line}: arrival_s counts from the start of the trace, at most {MAX_ARRIVAL_S:.0f}")
    if max(prompt, output) > MAX_TOKENS:
        raise BadInput(f"line {line}: prompt_tokens and output_tokens may be at most {MAX_TOKENS}")
    if abs(priority) > MAX_PRIORITY:
        raise BadInput(f"line {line}: priority must be from -{MAX_PRIORITY} to {MAX_PRIORITY}")
    key = row.get("key") or ""
    if len(key) > MAX_KEY_LENGTH:
        raise BadInput(f"line {line}: key may have at most {MAX_KEY_LENGTH} characters")
    return arrival_s, prompt, round_up_to_blocks(output, BLOCK), slo_s, priority, key
