"""Extracts the answer of a reply: a number, a choice or a program. Pure functions."""

import re
from decimal import Decimal, InvalidOperation

_NUMBER = r"-?\$?\d[\d,]*(?:\.\d+)?"
_STATED = re.compile(rf"(?:####|[Tt]he answer is:?)\s*({_NUMBER})")
_ANY = re.compile(_NUMBER)
_CHOICES = (re.compile(r"answer is:?\s*\(?([A-J])\b\)?"), re.compile(r"[Aa]nswer:\s*\(?([A-J])\b"))
_LETTER = re.compile(r"\b([A-J])\b")
_FENCE = re.compile(r"```(?:python)?\s*\n(.*?)(?:```|$)", re.DOTALL)


def states_answer(text: str, answer: str) -> bool:
    """Rows with an answer: whether the text has `The answer is ANSWER.`."""
    return f"The answer is {answer}." in text


def number_of(text: str) -> str | None:
    """GSM8K: the first number stated as the answer, else the last number. Text from a following question on, which the
    model wrote itself, is ignored."""
    own = text.partition("\nQuestion:")[0]
    if stated := _STATED.search(own):
        return stated[1]
    found = _ANY.findall(own)
    return found[-1] if found else None


def same_number(found: str | None, expected: str) -> bool:
    """Whether both are the same number: `$1,200.00` equals `1200`."""
    number = _value(expected)
    return found is not None and number is not None and _value(found) == number


def choice_of(text: str) -> str | None:
    """MMLU-Pro: the letter stated as the answer, else the last single letter."""
    for pattern in _CHOICES:
        if stated := pattern.search(text):
            return stated[1]
    found = _LETTER.findall(text)
    return found[-1] if found else None


def program_of(text: str) -> str:
    """MBPP: the text before [DONE], or its first code fence."""
    own = text.partition("[DONE]")[0].removeprefix("[BEGIN]")
    fenced = _FENCE.search(own)
    return (fenced[1] if fenced else own).strip("\n") + "\n"


def _value(text: str) -> Decimal | None:
    try:
        return Decimal(text.strip().replace(",", "").replace("$", ""))
    except InvalidOperation:
        return None
