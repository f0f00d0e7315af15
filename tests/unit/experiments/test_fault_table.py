"""The figures of a row of the table of faults."""

from pathlib import Path

import pytest

from experiments.fault_load import BusMonitor
from experiments.fault_table.load import Answer, figures
from experiments.fault_table.target import flip_bytes

ALONE = {"2+2?": "4"}


def answer(sent_s: float, ended_s: float, text: str | None = "4", *errors: str, failed: bool = False) -> Answer:
    return Answer("2+2?", sent_s, ended_s, list(errors), text, f"r-{sent_s:g}", failed)


def test_every_end_of_a_request_is_counted_once() -> None:
    answers = [
        answer(0, 1),
        answer(9, 12, "4", "ConnectError", "ConnectError"),
        answer(9.5, 13, None, "500 damaged", failed=True),
        answer(11, 131, None, "ReadError"),
        answer(12, 13, "5"),
        answer(13, 14, "6"),
    ]
    monitor = BusMonitor(ends={"r-0": {("completed", "4")}, "r-12": {("completed", "4"), ("completed", "5")}})
    monitor.unverified.add("r-13")
    found = figures(answers, ALONE, monitor, began_s=10, ended_s=11)
    assert (found.requests, found.repeated, found.failed, found.lost) == (6, 2, 1, 1)
    assert (found.duplicated, found.wrong, found.marked) == (1, 2, 1)
    assert found.errors == {"ConnectError": 2, "500 damaged": 1, "ReadError": 1}
    assert (found.added_s, found.recovery_s) == (119.0, 120.0)


def test_a_fault_without_effect_adds_nothing() -> None:
    found = figures([answer(0, 1), answer(9, 10.5)], ALONE, BusMonitor(), began_s=10, ended_s=11)
    assert (found.repeated, found.failed, found.lost, found.wrong, found.recovery_s) == (0, 0, 0, 0, 0.0)


def test_a_row_needs_an_answer_before_the_fault() -> None:
    with pytest.raises(ValueError, match="no request was answered before the fault"):
        figures([answer(0, 11)], ALONE, BusMonitor(), began_s=10, ended_s=11)


def test_eight_bytes_near_the_end_of_a_file_are_inverted(tmp_path: Path) -> None:
    file = tmp_path / "1.blk"
    file.write_bytes(bytes(2000))
    flip_bytes(file)
    assert file.read_bytes() == bytes(1000) + b"\xff" * 8 + bytes(992)
