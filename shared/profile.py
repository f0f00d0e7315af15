"""The latency profile: measured seconds of an iteration by TP degree, kind of step and tokens of the batch.

Lookups interpolate between the measured points, are constant below the smallest and proportional to the tokens above
the largest. `LatencyProfile.cost` gives the cost of an iteration, also of one with both kinds of step.
"""

import csv
import gzip
import io
import math
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from shared.arrays import Float64
from shared.errors import BadInput
from shared.iteration_cost import Curve, IterationCost
from shared.messages.steps import StepKind

COLUMNS = ("tp", "batch_tokens", "step_kind", "latency_ms")
OPTIONAL_COLUMNS = ("context_tokens", "recompute_tokens")
MIXED: Literal["mixed"] = "mixed"
# Kinds of block-causal models: a prefill is a recompute step and a denoising step a cache step. A block is committed by
# the next one's first step, so it has no step of its own.
BLOCK_KINDS = {"prefill": StepKind.RECOMPUTE, "denoise": StepKind.CACHE, "commit": None}
SHARED_LAUNCH_TOKENS = 1024  # of each kind in the row of `with_shared_launch`
MS_PER_S = 1000.0


RowKind = StepKind | Literal["mixed"]


class MeasuredLatency(NamedTuple):
    """One row of a profile. Units: tokens; seconds."""

    tp: int
    batch_tokens: int  # all tokens fed
    kind: RowKind
    latency_s: float
    context_tokens: int = 0  # sum of the requests' key lengths; 0: not known
    recompute_tokens: int = 0  # of a mixed iteration: the tokens fed by its recompute steps


def kind_name(kind: RowKind) -> str:
    """Its name in the column step_kind."""
    return kind.name.lower() if isinstance(kind, StepKind) else kind


class LatencyProfile:
    """Measured latencies, and the curves through them by TP degree and kind of step."""

    def __init__(self, rows: Iterable[MeasuredLatency] = ()) -> None:
        self.rows = sorted(rows, key=_order)
        points: defaultdict[tuple[int, StepKind], list[tuple[int, int, float]]] = defaultdict(list)
        for row in self.rows:
            if isinstance(row.kind, StepKind):
                points[row.tp, row.kind].append((row.batch_tokens, row.context_tokens, row.latency_s))
        self.curves = {key: Curve.fit(sorted(of_key)) for key, of_key in sorted(points.items())}

    @property
    def tp_degrees(self) -> list[int]:
        """Ascending."""
        return sorted({tp for tp, _ in self.curves})

    @overload
    def latency_s(self, tp: int, batch_tokens: float, kind: StepKind) -> float: ...

    @overload
    def latency_s(self, tp: int, batch_tokens: NDArray[np.number], kind: StepKind) -> Float64: ...

    def latency_s(self, tp: int, batch_tokens: float | NDArray[np.number], kind: StepKind) -> float | Float64:
        """Seconds of one step. Shapes: any -> the same. Raises: BadInput if the profile has no such rows."""
        return self._curve(tp, kind).seconds(batch_tokens)

    def cost(self, tp: int) -> IterationCost:
        """The cost of an iteration. Without cache rows a cache step counts as a recompute step of its tokens.

        The shared launch is the median saving of the mixed rows, and 0 without them.
        Raises: BadInput if the profile has no recompute rows for this TP degree.
        """
        recompute = self._curve(tp, StepKind.RECOMPUTE)
        cache = self.curves.get((tp, StepKind.CACHE), recompute)
        savings_s = [
            float(cache.seconds(row.batch_tokens - row.recompute_tokens, row.context_tokens - row.recompute_tokens))
            + float(recompute.seconds(row.recompute_tokens))
            - row.latency_s
            for row in self.rows
            if row.tp == tp and row.kind == MIXED
        ]
        return IterationCost(recompute, cache, max(float(np.median(savings_s)), 0.0) if savings_s else 0.0)

    def require(self, tp: int, *, cached: bool) -> None:
        """Raises: BadInput if the profile lacks rows of recompute steps or, with a cache, of cache steps."""
        for kind in StepKind if cached else (StepKind.RECOMPUTE,):
            self._curve(tp, kind)

    def for_tp(self, tp: int) -> "LatencyProfile":
        """The rows of one TP degree, as an instance registers them."""
        return LatencyProfile(row for row in self.rows if row.tp == tp)

    def completed_from(self, other: "LatencyProfile") -> "LatencyProfile":
        """With the curves of `other` that this profile lacks; mixed rows only for TP degrees that it lacks."""
        known = {*self.curves, *((tp, MIXED) for tp in self.tp_degrees)}
        missing = [row for row in other.rows if (row.tp, row.kind) not in known]
        return LatencyProfile([*self.rows, *missing])

    def with_shared_launch(self, saving_s: float) -> "LatencyProfile":
        """With mixed rows as if every iteration of both kinds saved `saving_s`, for TP degrees without such rows."""
        if not saving_s:
            return self
        measured = {row.tp for row in self.rows if row.kind == MIXED}
        added = [
            self._mixed_row(tp, saving_s)
            for tp in self.tp_degrees
            if tp not in measured and (tp, StepKind.CACHE) in self.curves
        ]
        return LatencyProfile([*self.rows, *added])

    @classmethod
    def from_rows(cls, rows: Iterable[tuple[int, int, StepKind, float] | MeasuredLatency]) -> "LatencyProfile":
        """Build from rows with the fields of MeasuredLatency, in any order.

        Raises: BadInput if a row is repeated or there are no rows.
        """
        measured = [MeasuredLatency(*row) for row in rows]
        seen = set()
        for row in measured:
            if (key := row._replace(latency_s=0.0)) in seen:
                name = kind_name(row.kind)
                raise BadInput(f"two rows for tp {row.tp}, batch_tokens {row.batch_tokens}, step_kind {name}")
            seen.add(key)
        profile = cls(measured)
        if not profile.curves:
            raise BadInput("the latency profile has no rows of recompute or cache steps")
        return profile

    @classmethod
    def from_csv(cls, text: str) -> "LatencyProfile":
        """Read the text of a PROFILE.csv. Raises: BadInput naming the invalid line."""
        reader = csv.DictReader(io.StringIO(text))
        try:
            lines = list(reader)
        except csv.Error as error:
            raise BadInput(f"a latency profile must be CSV: {error}") from None
        missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
        if missing:
            raise BadInput(f"a latency profile needs the columns {','.join(COLUMNS)}; missing: {','.join(missing)}")
        of_blocks = all((row["step_kind"] or "").lower() in BLOCK_KINDS for row in lines)
        rows = (_read_row(row, line, of_blocks=of_blocks) for line, row in enumerate(lines, start=2))
        return cls.from_rows(row for row in rows if row is not None)

    def to_csv(self) -> str:
        """The text of a PROFILE.csv."""
        optional = [name for name in OPTIONAL_COLUMNS if any(getattr(row, name) for row in self.rows)]
        lines = [",".join((*COLUMNS, *optional))]
        for row in self.rows:
            fields = [f"{row.tp},{row.batch_tokens},{kind_name(row.kind)},{row.latency_s * MS_PER_S:.6g}"]
            lines.append(",".join(fields + [str(getattr(row, name) or "") for name in optional]))
        return "\n".join(lines) + "\n"

    def _mixed_row(self, tp: int, saving_s: float) -> MeasuredLatency:
        each = SHARED_LAUNCH_TOKENS
        parts_s = [self.curves[tp, kind].seconds(each) for kind in StepKind]
        latency_s = float(max(sum(parts_s) - saving_s, *parts_s))
        return MeasuredLatency(tp, 2 * each, MIXED, latency_s, recompute_tokens=each)

    def _curve(self, tp: int, kind: StepKind) -> Curve:
        curve = self.curves.get((tp, kind))
        if curve is None:
            raise BadInput(f"the latency profile has no {kind.name.lower()} rows for tp {tp}", "profile")
        return curve


def read_profile(path: Path) -> LatencyProfile:
    """Read a PROFILE.csv or PROFILE.csv.gz. Raises: BadInput naming the file and the error."""
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
        return LatencyProfile.from_csv(text)
    except BadInput as error:
        raise BadInput(f"{path}: {error.message}", "profile") from None
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise BadInput(f"cannot read the latency profile {path}: {error}", "profile") from None


def write_profile(path: Path, profile: LatencyProfile) -> None:
    """Write a PROFILE.csv or PROFILE.csv.gz."""
    data = profile.to_csv().encode("utf-8")
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def _order(row: MeasuredLatency) -> tuple[int, ...]:
    kind = int(row.kind) if isinstance(row.kind, StepKind) else len(StepKind)
    return row.tp, kind, row.batch_tokens, row.recompute_tokens, row.context_tokens


def _read_row(row: Mapping[str, str | None], line: int, *, of_blocks: bool) -> MeasuredLatency | None:
    """Returns: None for a row that is ignored. `of_blocks`: whether the profile has kinds of block-causal models only;
    beside others, these are ignored."""
    name = (row["step_kind"] or "").lower()
    kind = BLOCK_KINDS.get(name) if of_blocks else StepKind.__members__.get(name.upper())
    if kind is None and name in BLOCK_KINDS:
        return None
    tp = _positive(row, "tp", int, line)
    batch_tokens = _positive(row, "batch_tokens", int, line)
    latency_s = _positive(row, "latency_ms", float, line) / MS_PER_S
    context_tokens = _positive(row, "context_tokens", int, line) if row.get("context_tokens") else 0
    if name == MIXED:
        recompute_tokens = _positive(row, "recompute_tokens", int, line)
        if recompute_tokens >= batch_tokens:
            raise BadInput(f"line {line}: recompute_tokens of a mixed row must be below batch_tokens, {batch_tokens}")
        return MeasuredLatency(tp, batch_tokens, MIXED, latency_s, context_tokens, recompute_tokens)
    if kind is None:
        accepted = f"recompute, cache, mixed, {', '.join(BLOCK_KINDS)}"
        raise BadInput(f"line {line}: step_kind {row['step_kind']!r} is not known; accepted: {accepted}")
    return MeasuredLatency(tp, batch_tokens, kind, latency_s, context_tokens)


N = TypeVar("N", int, float)


def _positive(row: Mapping[str, str | None], column: str, kind: type[N], line: int) -> N:
    try:
        value = kind(row.get(column) or "")
    except ValueError:
        value = kind(0)
    if not (value > 0 and math.isfinite(value)):
        raise BadInput(f"line {line}: {column} must be a number above 0, got {row.get(column)!r}")
    return value
