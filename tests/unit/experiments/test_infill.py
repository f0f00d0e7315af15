"""The checker of the infill experiment."""

import pytest

from experiments.infill import right_steps, steps_of, uses_numbers_of


@pytest.mark.parametrize(
    ("text", "is_right"),
    [
        ("Half leaves 54/2=27. Breaking 6 leaves 27-6=21.", True),
        ("Step 1: 10 + 11 = 21.", True),
        ("7*3=21.", True),
        ("54/2=26. 26-6=21.", False),  # both wrong
        ("54/2=27. 27-6=21. 21+1=22.", False),  # results in another answer
        ("9/2=21.", False),
        ("0/0=21.", False),
        ("We get 21.", False),  # no equation
        ("662127-6=21.", False),
    ],
)
def test_every_equation_and_the_last_result_are_checked(text: str, is_right: bool) -> None:
    assert right_steps(text, "21") is is_right


@pytest.mark.parametrize(
    ("text", "is_own"), [("54/2=27. 27-6=21.", True), ("50/2=25.", False), ("54/2=27. 21+0=21.", False), ("", True)]
)
def test_equations_start_from_the_numbers_of_the_problem(text: str, is_own: bool) -> None:
    assert uses_numbers_of("John has 54 flowers and drops half of them, then breaks six.", text) is is_own


def test_the_last_sentence_is_not_part_of_the_steps() -> None:
    reply = {"choices": [{"text": "10+11=21. The answer is 21."}]}
    assert steps_of(reply) == "10+11=21."
