"""Extraction of answers from replies; the judge's prompt and its valid scores."""

import msgspec
import pytest

from dilaserve.quality.answers import choice_of, number_of, program_of, same_number
from dilaserve.quality.judge import PROMPT, read_score


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("9 * 2 = <<9*2=18>>18 every day.\n#### 18", "18"),
        ("She has 5, then 7. The answer is 12.", "12"),
        ("the answer is: $1,234.50.", "$1,234.50"),
        ("so 3 + 4 = 7 apples", "7"),
        ("#### -5", "-5"),
        ("#### 18\n\nQuestion: Tom has 3 cats\nAnswer: #### 3", "18"),
        ("18 in all\nQuestion: 99?", "18"),
        ("no idea", None),
        ("", None),
    ],
)
def test_the_stated_number_is_the_answer_else_the_last_number(text: str, number: str | None) -> None:
    assert number_of(text) == number


@pytest.mark.parametrize(
    ("found", "expected", "same"),
    [
        ("18", " 18", True),
        ("$1,200.00", "1200", True),
        ("18.5", "18", False),
        (None, "18", False),
        ("18", "eighteen", False),
    ],
)
def test_numbers_are_compared_by_value(found: str | None, expected: str, same: bool) -> None:
    assert same_number(found, expected) == same


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("Because of A and B, the answer is (C).", "C"),
        ("the answer is D", "D"),
        ("Answer: (J)", "J"),
        ("I think it must be E", "E"),
        ("The answer is unclear", None),
        ("", None),
    ],
)
def test_the_stated_letter_is_the_answer_else_the_last_single_letter(text: str, choice: str | None) -> None:
    assert choice_of(text) == choice


@pytest.mark.parametrize(
    "text",
    [
        "def f(x):\n    return x\n[DONE]\nYou are an expert",
        "[BEGIN]\ndef f(x):\n    return x\n[DONE]",
        "Here it is:\n```python\ndef f(x):\n    return x\n```\nThat works.",
        "```\ndef f(x):\n    return x",
    ],
)
def test_a_program_is_extracted_from_its_surroundings(text: str) -> None:
    assert program_of(text) == "def f(x):\n    return x\n"


def test_the_prompt_holds_both_texts_and_the_schema() -> None:
    text = PROMPT.format(prompt="What is {x}?", response="It is {y}.")
    assert "### USER REQUEST:\nWhat is {x}?\n\n### ASSISTANT ANSWER:\nIt is {y}.\n" in text
    assert text.endswith('{"score": <0-10>, "explanation": "<one short sentence>"}.')


@pytest.mark.parametrize("score", [0, 7, 10])
def test_an_integer_from_0_to_10_is_a_score(score: int) -> None:
    assert read_score(f' {{"score": {score}, "explanation": "Good."}}\n') == score


@pytest.mark.parametrize(
    "content",
    [
        "",
        "8",
        "The score is 8.",
        '{"score": 11, "explanation": "x"}',
        '{"score": -1, "explanation": "x"}',
        '{"score": 7.5, "explanation": "x"}',
        '{"score": "7", "explanation": "x"}',
        '{"score": 7}',
        '{"score": 7, "explanation": "x", "more": 1}',
        '```json\n{"score": 7, "explanation": "x"}\n```',
    ],
)
def test_any_other_answer_is_invalid(content: str) -> None:
    with pytest.raises(msgspec.MsgspecError):
        read_score(content)
