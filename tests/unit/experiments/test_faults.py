"""The figures of a fault, the accounts of a long run, and the growth of its processes."""

from pathlib import Path

import pytest

from experiments.faults.accounts import Received, accounts, figures
from experiments.faults.actions import flip_bytes
from experiments.faults.growth import Growth, Sample, growths
from experiments.faults.load import Answer
from shared.messages.requests import Outcome, OutcomeStatus

ALONE = {"2+2?": "4"}


def answer(sent_s: float, ended_s: float, text: str | None = "4", *errors: str, failed: bool = False) -> Answer:
    return Answer("2+2?", sent_s, ended_s, list(errors), text, f"r-{sent_s:g}", failed)


def outcome(
    request_id: str, text: str, status: OutcomeStatus = OutcomeStatus.COMPLETED, *, unverified: bool = False
) -> Outcome:
    return Outcome(request_id=request_id, status=status, text=text, unverified=unverified)


def test_every_end_of_a_request_is_counted_once() -> None:
    answers = [
        answer(0, 1),
        answer(9, 12, "4", "ConnectError", "ConnectError"),
        answer(9.5, 13, None, "500 damaged", failed=True),
        answer(11, 131, None, "ReadError"),
        answer(12, 13, "5"),
        answer(13, 14, "6"),
    ]
    received = Received(list)
    received |= {
        "r-0": [outcome("r-0", "4")] * 2,
        "r-12": [outcome("r-12", "4"), outcome("r-12", "5")],
        "r-13": [outcome("r-13", "6"), outcome("r-13", "6", unverified=True)],
    }
    found = figures(answers, ALONE, received, began_s=10, ended_s=11)
    assert (found.requests, found.repeated, found.failed, found.lost) == (6, 2, 1, 1)
    assert (found.duplicated, found.wrong, found.marked) == (1, 2, 1)
    assert found.errors == {"ConnectError": 2, "500 damaged": 1, "ReadError": 1}
    assert (found.added_s, found.silence_s, found.recovery_s) == (119.0, 117.0, 120.0)


def test_a_fault_without_effect_adds_nothing() -> None:
    found = figures([answer(0, 1), answer(9, 10.5)], ALONE, Received(list), began_s=10, ended_s=11)
    assert (found.repeated, found.failed, found.lost, found.wrong, found.recovery_s) == (0, 0, 0, 0, 0.0)


def test_a_row_needs_an_answer_before_the_fault() -> None:
    with pytest.raises(ValueError, match="no request was answered before the fault"):
        figures([answer(0, 11)], ALONE, Received(list), began_s=10, ended_s=11)


def test_eight_bytes_near_the_end_of_a_file_are_inverted(tmp_path: Path) -> None:
    file = tmp_path / "1.blk"
    file.write_bytes(bytes(2000))
    flip_bytes(file)
    assert file.read_bytes() == bytes(1000) + b"\xff" * 8 + bytes(992)


def test_accepted_requests_are_finished_cancelled_or_lost() -> None:
    outcomes = {"a": outcome("a", "a"), "b": outcome("b", "b", OutcomeStatus.CANCELLED), "other": outcome("other", "")}
    found = accounts({"a", "b", "c"}, outcomes, {"a": "changed", "b": "b"}, duplicated=1, unfinished=2)
    assert (found.accepted, found.lost, found.different) == (3, 1, 1)
    assert found.statuses == {"completed": 1, "cancelled": 1}
    assert (found.duplicated, found.unfinished) == (1, 2)


def test_growth_compares_the_second_and_the_last_quarter() -> None:
    rss_mb = {10: 500, 30: 100, 40: 104, 60: 900, 80: 110, 90: 112}
    samples = [Sample("gateway", at_s, mb, 20) for at_s, mb in rss_mb.items()]
    assert growths([*samples, Sample("worker", 90, 1, 1)], 100) == [Growth("gateway", (102.0, 111.0), (20.0, 20.0))]


@pytest.mark.parametrize(
    ("rss_mb", "descriptors", "flat"),
    [
        ((100, 109), (20, 20), True),
        ((100, 111), (20, 20), False),
        ((10, 17), (20, 20), True),
        ((100, 100), (20, 29), False),
    ],
)
def test_a_leak_is_a_growth_beyond_the_tolerance(
    rss_mb: tuple[float, float], descriptors: tuple[float, float], *, flat: bool
) -> None:
    assert Growth("worker", rss_mb, descriptors).is_flat is flat
