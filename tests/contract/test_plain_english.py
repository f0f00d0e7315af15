"""The documents, docstrings, comments, messages and console texts use plain English."""

import pytest

from tests.support.passages import Passage
from tests.support.plain_english import ROOT, RULES, files, findings, of_passage

BAD = [
    "The profile is made anew.",
    "A mask that needs mending.",
    "Whoever may start containers has root's rights.",
    "The page tells what happens.",
    "The log said so.",
    "No scheduler is heard for a second.",
    "if the key is none",
    "Wait until the file is there.",
    "The predictor is away.",
    "after so many steps",
    "one row a request",
    "one message an iteration",
    "nobody waits for it",
    "The message is logged and buried.",
    "It is computed again in vain.",
    "no more than one request at a time",
    "a change worth the while",
    "It does not move, nor does it wait.",
    "Not tried, for want of\nthe hardware",
    "kept by ear",
    "until the result has come",
    "the error comes from the bus",
    "the request goes on elsewhere",
    "the value that stands for none",
    "There was no word of it.",
    "requests under way",
    "at least so it seems",
    "it takes a predictor",
    "the canvas is kept as ever",
    "requests of late, and their lengths",
    "What a request needs.",
    "Checks a job. What is wrong is logged.",
    "what the worker still runs",
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.instead)
def test_every_rule_finds_a_bad_sentence(rule: object) -> None:
    found = [finding.rule for sentence in BAD for finding in of_passage(ROOT, Passage(sentence, 1))]
    assert rule in found


@pytest.mark.slow  # `make check` runs it
def test_the_repository_is_written_in_plain_english() -> None:
    assert [str(found) for path in files([ROOT]) for found in findings(path)] == []
