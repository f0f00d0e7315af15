"""The stored rows, and the table that docs/reliability.md holds."""

from pathlib import Path

import msgspec

from experiments.faults.rows import FAULTS
from experiments.report import RESULTS, markdown_table

STORED = RESULTS / "fault_table.jsonl"
PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
BEGIN, END = "<!-- fault table: begin -->\n", "<!-- fault table: end -->"
COLUMNS = (
    *("fault", "requests", "repeated", "failed", "lost", "duplicated", "wrong", "of these marked"),
    *("added latency, s", "silence, s", "recovery, s", "p95, times", "gateway, MB"),
)


class FaultRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One row, as `accounts.FaultFigures`."""

    fault: str
    load: str
    requests: int
    repeated: int
    failed: int
    lost: int
    duplicated: int
    wrong: int
    marked: int
    added_s: float | None = None  # None: not measured
    silence_s: float | None = None  # None: not measured
    recovery_s: float
    slowdown: float | None = None  # None: not measured
    gateway_mb: tuple[float, float, float] | None = None
    errors: dict[str, int]
    environment: str

    @property
    def is_right(self) -> bool:
        """Whether every request had one answer, the right one or one that is marked."""
        return not (self.failed or self.lost or self.duplicated) and self.wrong == self.marked


def read_rows() -> list[FaultRow]:
    """The stored rows."""
    lines = STORED.read_bytes().splitlines() if STORED.exists() else []
    return [msgspec.json.decode(line, type=FaultRow) for line in lines]


def store(row: FaultRow) -> None:
    """Put the row in place of an earlier one of its fault, in the order of the faults, and into the document."""
    order = [fault.name for fault in FAULTS]
    rows = sorted(
        [*(old for old in read_rows() if old.fault != row.fault), row], key=lambda row: order.index(row.fault)
    )
    STORED.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, tail = rest.partition(END)
    PAGE.write_text(f"{head}{BEGIN}\n{table()}\n\n{END}{tail}", encoding="utf-8")


def table() -> str:
    """The table of the stored rows, in Markdown."""
    return markdown_table(COLUMNS, map(_cells, read_rows()))


def _cells(row: FaultRow) -> tuple[object, ...]:
    counts = (row.requests, row.repeated, row.failed, row.lost, row.duplicated, row.wrong, row.marked)
    times = ("" if value is None else f"{value:.1f}" for value in (row.added_s, row.silence_s, row.recovery_s))
    slowdown = "" if row.slowdown is None else f"{row.slowdown:.2f}"
    return row.fault, *counts, *times, slowdown, " / ".join(f"{mb:.0f}" for mb in row.gateway_mb or ())
