"""The stored rows, and the table that docs/reliability.md holds."""

from pathlib import Path

import msgspec

from experiments.fault_table.rows import FAULTS
from experiments.report import RESULTS, markdown_table

STORED = RESULTS / "fault_table.jsonl"
PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
BEGIN, END = "<!-- fault table: begin -->\n", "<!-- fault table: end -->"
COLUMNS = (
    *("fault", "requests", "repeated", "failed", "lost", "duplicated", "wrong", "of these marked"),
    *("added latency, s", "recovery, s"),
)


class FaultRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row, as `load.FaultFigures`."""

    fault: str
    load: str
    requests: int
    repeated: int
    failed: int
    lost: int
    duplicated: int
    wrong: int
    marked: int
    added_s: float
    recovery_s: float
    errors: dict[str, int]
    environment: str


def read_rows() -> list[FaultRow]:
    """The stored rows."""
    lines = STORED.read_bytes().splitlines() if STORED.exists() else []
    return [msgspec.json.decode(line, type=FaultRow) for line in lines]


def write_rows(rows: list[FaultRow]) -> None:
    """Store the rows in the order of the faults."""
    order = [fault.name for fault in FAULTS]
    rows = sorted(rows, key=lambda row: order.index(row.fault))
    STORED.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))


def table() -> str:
    """The table of the stored rows, in Markdown."""
    return markdown_table(
        COLUMNS,
        (
            (
                *(row.fault, row.requests, row.repeated, row.failed, row.lost, row.duplicated, row.wrong, row.marked),
                *(f"{row.added_s:.1f}", f"{row.recovery_s:.1f}"),
            )
            for row in read_rows()
        ),
    )


def write_table() -> None:
    """Replace the table in the document."""
    text = PAGE.read_text(encoding="utf-8")
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    PAGE.write_text(f"{head}{BEGIN}\n{table()}\n\n{END}{tail}", encoding="utf-8")
