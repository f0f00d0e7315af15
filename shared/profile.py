"""The latency profile: seconds of a denoising step by TP degree, step kind and tokens in the batch.

Lookups interpolate between the measured points, are constant below the smallest and proportional to the tokens above
the largest. An iteration with both step kinds costs the sum of two lookups.
"""

import csv
import gzip
import io
import math
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from shared.arrays import Float64
from shared.errors import BadInput
from shared.messages.steps import StepKind

COLUMNS = ("tp", "batch_tokens", "step_kind", "latency_ms")
MS_PER_S = 1000.0


@dataclass(frozen=True, slots=True)
class Curve:
    """Latencies of one TP degree and step kind. Shapes: both [n], tokens ascending."""

    batch_tokens: Float64
    latency_s: Float64


class LatencyProfile:
    """Latency curves by TP degree and step kind."""

    def __init__(self, curves: Mapping[tuple[int, StepKind], Curve]) -> None:
        self.curves = dict(sorted(curves.items()))

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
        curve = self.curves.get((tp, kind))
        if curve is None:
            raise BadInput(f"the latency profile has no {kind.name.lower()} rows for tp {tp}", "profile")
        tokens: Float64 = np.asarray(batch_tokens, dtype=np.float64)
        latency_s: Float64 = np.interp(tokens, curve.batch_tokens, curve.latency_s)
        scaled: Float64 = latency_s * np.maximum(tokens / curve.batch_tokens[-1], 1.0)
        return scaled

    def for_tp(self, tp: int) -> "LatencyProfile":
        """The rows of one TP degree, as an instance registers them."""
        return LatencyProfile({key: curve for key, curve in self.curves.items() if key[0] == tp})

    @classmethod
    def from_rows(cls, rows: Iterable[tuple[int, int, StepKind, float]]) -> "LatencyProfile":
        """Build from rows (tp, batch tokens, kind, latency in seconds), in any order.

        Raises: BadInput if a row is repeated or there are no rows.
        """
        points: defaultdict[tuple[int, StepKind], dict[int, float]] = defaultdict(dict)
        for tp, batch_tokens, kind, latency_s in rows:
            if batch_tokens in points[tp, kind]:
                raise BadInput(f"two rows for tp {tp}, batch_tokens {batch_tokens}, step_kind {kind.name.lower()}")
            points[tp, kind][batch_tokens] = latency_s
        if not points:
            raise BadInput("the latency profile has no rows")
        # A copy, as `interp` is faster on contiguous arrays.
        curves = {key: np.array(sorted(of_key.items()), dtype=np.float64).T.copy() for key, of_key in points.items()}
        return cls({key: Curve(*curve) for key, curve in curves.items()})

    @classmethod
    def from_csv(cls, text: str) -> "LatencyProfile":
        """Read the text of a PROFILE.csv. Raises: BadInput naming the invalid line."""
        reader = csv.DictReader(io.StringIO(text))
        missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
        if missing:
            raise BadInput(f"a latency profile needs the columns {','.join(COLUMNS)}; missing: {','.join(missing)}")
        return cls.from_rows(_read_row(row, line) for line, row in enumerate(reader, start=2))

    def to_csv(self) -> str:
        """The text of a PROFILE.csv."""
        lines = [",".join(COLUMNS)]
        for (tp, kind), curve in self.curves.items():
            for tokens, latency_s in zip(curve.batch_tokens, curve.latency_s, strict=True):
                lines.append(f"{tp},{tokens:.0f},{kind.name.lower()},{latency_s * MS_PER_S:.6g}")
        return "\n".join(lines) + "\n"


def read_profile(path: Path) -> LatencyProfile:
    """Read a PROFILE.csv or PROFILE.csv.gz. Raises: BadInput naming the file and the error."""
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
        return LatencyProfile.from_csv(text)
    except BadInput as error:
        raise BadInput(f"{path}: {error.message}", "profile") from None
    except (OSError, EOFError, zlib.error, csv.Error, UnicodeDecodeError) as error:
        raise BadInput(f"cannot read the latency profile {path}: {error}", "profile") from None


def write_profile(path: Path, profile: LatencyProfile) -> None:
    """Write a PROFILE.csv or PROFILE.csv.gz."""
    data = profile.to_csv().encode("utf-8")
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def _read_row(row: Mapping[str, str | None], line: int) -> tuple[int, int, StepKind, float]:
    tp = _positive(row, "tp", int, line)
    batch_tokens = _positive(row, "batch_tokens", int, line)
    latency_ms = _positive(row, "latency_ms", float, line)
    kind = StepKind.__members__.get((row["step_kind"] or "").upper())
    if kind is None:
        raise BadInput(f"line {line}: step_kind must be recompute or cache, got {row['step_kind']!r}")
    return tp, batch_tokens, kind, latency_ms / MS_PER_S


N = TypeVar("N", int, float)


def _positive(row: Mapping[str, str | None], column: str, kind: type[N], line: int) -> N:
    try:
        value = kind(row[column] or "")
    except ValueError:
        value = kind(0)
    if not (value > 0 and math.isfinite(value)):
        raise BadInput(f"line {line}: {column} must be a number above 0, got {row[column]!r}")
    return value
