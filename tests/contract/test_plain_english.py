"""The documents, docstrings, comments, messages and console texts use plain English."""

from collections import Counter

import pytest

from tests.support.passages import Passage, of_html, of_markdown, of_python, of_script, unreleased
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
GOOD = [
    "Publish the outcome again.",
    "What does a request need?",
    "It returns what the worker measured.",
    "A step unmasks at least one token.",
    "None of the instances leads.",
    "There is none, or `told` is none of your names: `anew`.",
    "Stop right away, and take the mask away from the canvas.",
    "Drain the instance, which gives its requests away at recompute steps.",
    "It is so much that nothing fits, so that it waits.",
    "One row per request, one of a batch, one is a request.",
    "The job goes on the same instance.",
    "Stand-ins for images; see [the page](told.md) and https://told.example/heard.",
    "of late results, the first",
]


@pytest.mark.parametrize("sentence", BAD)
def test_a_sentence_with_a_banned_pattern_is_found(sentence: str) -> None:
    assert list(of_passage(ROOT, Passage(sentence, 1)))


@pytest.mark.parametrize("sentence", GOOD)
def test_a_plain_sentence_is_not_found(sentence: str) -> None:
    [passage] = of_markdown(sentence)
    assert not list(of_passage(ROOT, passage))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.instead)
def test_every_rule_finds_a_bad_sentence(rule: object) -> None:
    found = [finding.rule for sentence in BAD for finding in of_passage(ROOT, Passage(sentence, 1))]
    assert rule in found


def test_markdown_is_read_without_code() -> None:
    text = (
        "# A title\n\ntext `told`\nmore\n\n    code told\n\n    told\n\n- item\n  told\n\n```sh\ntold\n```\n| told |\n"
    )
    found = [(item.words, item.line) for passage in of_markdown(text) for item in of_passage(ROOT, passage)]
    assert found == [("told", 11), ("told", 16)]


def test_python_is_read_in_docstrings_comments_messages_and_test_names() -> None:
    text = '''"""Told.\n\nIn `told` only.\n"""\n
def test_nothing_is_told() -> None:
    """It tells."""
    told = 1  # told later
    # a long comment, so
    # many words
    log.info("told")
    log.info(f"it told {told} of {told:.2f}")
'''
    found = Counter(item.line for passage in of_python(text, names=True) for item in of_passage(ROOT, passage))
    assert found == {1: 1, 6: 1, 7: 1, 8: 1, 9: 1, 12: 1}


def test_the_console_is_read_in_texts_labels_and_comments() -> None:
    page = '<!-- told --><p title="told">It is <b class="told">told</b></p>\n<!-- a\ntold -->'
    script = '// said\n// more\nconst told = "told"; // heard\n'
    script += '/* told */ show("It was told", `and ${told} is said there`);\n'
    in_page = [item.line for passage in of_html(page) for item in of_passage(ROOT, passage)]
    in_script = [item.line for passage in of_script(script) for item in of_passage(ROOT, passage)]
    assert in_page == [1, 1, 1, 3]
    assert sorted(in_script) == [1, 3, 4, 4, 4]


def test_released_sections_of_the_changelog_stay() -> None:
    assert unreleased("# Changelog\n## [Unreleased]\na\n## [1.0.0]\nb\n") == "# Changelog\n## [Unreleased]\na\n"


@pytest.mark.slow  # `make check` runs it
def test_the_repository_is_written_in_plain_english() -> None:
    assert [str(found) for path in files([ROOT]) for found in findings(path)] == []
