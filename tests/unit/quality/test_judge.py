"""The judge's prompt and its valid scores."""

import pytest

from dilaserve.quality.judge import PROMPT, read_score


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
    with pytest.raises(ValueError, match="not the required schema"):
        read_score(content)
