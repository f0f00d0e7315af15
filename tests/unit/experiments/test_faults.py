"""The figures of a fault, and the accounts of a long run."""

from experiments.faults.accounts import Received, accounts, figures
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


def test_accepted_requests_are_finished_cancelled_or_lost() -> None:
    outcomes = {"a": outcome("a", "a"), "b": outcome("b", "b", OutcomeStatus.CANCELLED), "other": outcome("other", "")}
    found = accounts({"a", "b", "c"}, outcomes, {"a": "changed", "b": "b"}, duplicated=1, unfinished=2)
    assert (found.accepted, found.lost, found.different) == (3, 1, 1)
    assert found.statuses == {"completed": 1, "cancelled": 1}
    assert (found.duplicated, found.unfinished) == (1, 2)
