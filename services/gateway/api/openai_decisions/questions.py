"""The questions of a decision. The model reads each one with its options, and answers with the label of one of them."""

import json
from collections.abc import Sequence
from string import ascii_uppercase
from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag, field_validator

from services.gateway.api.base_models import Lenient, unsupported
from services.gateway.api.content import TextOrParts, joined
from services.gateway.api.other_fields import kind_of
from services.gateway.api.replies_and_chunks import Json

MAX_OPTIONS = 255
MAX_LEVELS = 10
KINDS = ("predicate", "choice", "score")


class Question(Lenient):
    instructions: TextOrParts
    name: str | None = None

    @property
    def options(self) -> Sequence[str]:
        """The options, as the model reads them."""
        raise NotImplementedError

    @property
    def labels(self) -> list[str]:
        """By option, the text that the model writes: a letter, which is one token; of many options, a number."""
        count = len(self.options)
        return list(ascii_uppercase[:count]) if count <= len(ascii_uppercase) else [str(i + 1) for i in range(count)]

    @property
    def text(self) -> str:
        """The question, as the model reads it."""
        options = [f"{label}: {option}" for label, option in zip(self.labels, self.options, strict=True)]
        what = "letter" if self.labels[0] == "A" else "number"
        return "\n".join([joined(self.instructions), *options, f"Answer with the {what} of one option only."])

    def answer(self, probabilities: Sequence[float], confidence: float) -> Json:
        """The answer without its name. `probabilities`: of the options, in order."""
        raise NotImplementedError


class PredicateQuestion(Question):
    """Whether a statement is true."""

    type: Literal["predicate"]

    @property
    def options(self) -> Sequence[str]:
        return ("true", "false")

    def answer(self, probabilities: Sequence[float], confidence: float) -> Json:  # noqa: ARG002
        return {"probability": probabilities[0]}


class ChoiceOption(Lenient):
    value: str | bool
    description: str | None = None


class ChoiceQuestion(Question):
    """Which of several options holds."""

    type: Literal["choice"]
    choices: Annotated[list[ChoiceOption], Field(min_length=2, max_length=MAX_OPTIONS, fail_fast=True)]

    @field_validator("choices")
    @classmethod
    def _require_distinct(cls, choices: list[ChoiceOption]) -> list[ChoiceOption]:
        if len({json.dumps(option.value) for option in choices}) < len(choices):
            raise unsupported("must have different values")
        return choices

    @property
    def options(self) -> Sequence[str]:
        return [_described(json.dumps(each.value, ensure_ascii=False), each.description) for each in self.choices]

    def answer(self, probabilities: Sequence[float], confidence: float) -> Json:
        values = [option.value for option in self.choices]
        shares = [{"value": value, "probability": p} for value, p in zip(values, probabilities, strict=True)]
        best = values[probabilities.index(max(probabilities))]
        return {"choice": best, "probabilities": shares, "confidence": confidence}


class ScoreLevel(Lenient):
    label: str
    description: str | None = None


class ScoreQuestion(Question):
    """Which level of a scale holds. The score is the expected index of the level."""

    type: Literal["score"]
    levels: Annotated[list[ScoreLevel], Field(min_length=2, max_length=MAX_LEVELS, fail_fast=True)]

    @property
    def options(self) -> Sequence[str]:
        return [_described(level.label, level.description) for level in self.levels]

    def answer(self, probabilities: Sequence[float], confidence: float) -> Json:
        levels = enumerate(zip(self.levels, probabilities, strict=True))
        shares = [{"value": i, "label": level.label, "probability": p} for i, (level, p) in levels]
        score = sum(i * p for i, p in enumerate(probabilities))
        return {"score": score, "probabilities": shares, "confidence": confidence}


AnyQuestion = Annotated[
    Annotated[PredicateQuestion, Tag("Predicate")]
    | Annotated[ChoiceQuestion, Tag("Choice")]
    | Annotated[ScoreQuestion, Tag("Score")],
    Discriminator(
        lambda question: kind_of(question).capitalize() if kind_of(question) in KINDS else None,
        custom_error_type="wrong_field",
        custom_error_message=f"must be one of {', '.join(KINDS)}",
        custom_error_context={"name": "type"},
    ),
]


def _described(option: str, description: str | None) -> str:
    return f"{option} - {description}" if description else option
