"""docs/reliability.md has the stored table of faults."""

from experiments.faults.rows import FAULTS
from experiments.faults.table import PAGE, read_rows, table

MIN_REQUESTS = 120


def test_the_page_has_the_stored_table_of_faults() -> None:
    assert table() in PAGE.read_text(encoding="utf-8")


def test_each_stored_row_is_of_a_known_fault_and_of_enough_requests() -> None:
    rows = read_rows()
    assert rows
    assert {row.fault for row in rows} <= {fault.name for fault in FAULTS}
    assert min(row.requests for row in rows) >= MIN_REQUESTS
