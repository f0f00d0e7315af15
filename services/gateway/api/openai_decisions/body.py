"""OpenAI's Decisions API: the body and the reply of POST /v1/decisions.

Each question becomes one request, which mostly takes one step: the model reads it with its options, and answers with
the label of one of them.
"""

import json
import math
from collections.abc import Mapping, Sequence
from string import ascii_uppercase
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag, field_validator

from services.gateway.api.base_models import Lenient, unsupported
from services.gateway.api.field_types import MAX_CHOICES
from services.gateway.api.openai_responses.body import InputItems, turns_of
from services.gateway.api.openai_responses.replies import ResponseUsage, usage_of
from services.gateway.api.other_fields import NEUTRAL_IN_OTHER_FORMS, kind_of
from services.gateway.api.plan import BodyPlanner, WantedCompletion
from services.gateway.api.prompts import TextOrParts, Turn, joined, turn
from services.gateway.api.replies_and_chunks import Json, Replies, serving
from services.gateway.api.request_models import ServedBody
from services.gateway.api.response_models import Serving
from services.gateway.api.token_logprobs import TokenLogprobs
from services.gateway.api.tool_calls.call_syntax import find_call_syntax
from services.gateway.api.tool_calls.use import ToolUse
from services.gateway.view_models import ResponseModel
from shared.messages.requests import Outcome
from shared.text import TextModel

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


class DecisionBody(ServedBody):
    """POST /v1/decisions."""

    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = NEUTRAL_IN_OTHER_FORMS

    input: InputItems
    questions: Annotated[list[AnyQuestion], Field(min_length=1, max_length=MAX_CHOICES, fail_fast=True)]
    stream: Literal[False] | None = None
    temperature: None = None  # the answer is the most probable one

    async def wanted(self, planner: BodyPlanner) -> WantedCompletion:
        tools = ToolUse(find_call_syntax(planner.text.tool_template))
        turns = turns_of(self.input)
        return WantedCompletion(
            prompts=(tools.chat(_with_question(turns, question.text)) for question in self.questions),
            prompt_field="input",
            limit=("max_tokens", None),
            passed=self.passed(),
            tools=tools,
            replies=lambda _request_id, _created_s: DecisionReplies(self.questions, planner.text),
            labels_by_prompt=[question.labels for question in self.questions],
            alternatives=0,
        )


class DecisionReplies(Replies):
    """Builds the reply to the questions of one body; it has no stream."""

    def __init__(self, questions: Sequence[AnyQuestion], text: TextModel) -> None:
        self._questions, self._text = questions, text

    def whole(self, outcomes: Sequence[Outcome]) -> Json:
        pairs = zip(self._questions, outcomes, strict=True)
        answers = [self._answer(question, outcome) for question, outcome in pairs]
        return {"model": self._text.card.name, "answers": answers, "usage": usage_of(outcomes)}

    def _answer(self, question: AnyQuestion, outcome: Outcome) -> Json:
        """The confidence is the model's own probability of the chosen label; those of the labels add up to 1."""
        probabilities = [outcome.choices.get(label, 0.0) for label in question.labels]
        tokens = TokenLogprobs(self._text).finish(outcome)
        confidence = math.exp(sum(token.logprob for token in tokens))
        served = {name: value for name, value in serving(outcome).items() if name != "choices"}
        head = {"type": question.type, "name": question.name}
        return {**head, **question.answer(probabilities, confidence), "dilaserve": served}


def _with_question(turns: Sequence[Turn], question: str) -> list[Turn]:
    """The turns with the question last, so that all questions share a prefix. It is appended to the last message if
    that is the user's, because many chat templates require that the roles alternate; else it has its own message."""
    if turns and turns[-1]["role"] == "user":
        return [*turns[:-1], turn("user", f"{turns[-1]['content']}\n\n{question}")]
    return [*turns, turn("user", question)]


class QuestionAnswer(ResponseModel):
    name: str | None = Field(description="of the question")
    dilaserve: Serving


class ConfidentAnswer(QuestionAnswer):
    confidence: float = Field(description="the probability of the chosen label among all texts")


class PredicateAnswer(QuestionAnswer):
    type: Literal["predicate"]
    probability: float = Field(description="that the statement is true")


class ChoiceProbability(ResponseModel):
    value: str | bool
    probability: float


class ChoiceAnswer(ConfidentAnswer):
    type: Literal["choice"]
    choice: str | bool = Field(description="the most probable value")
    probabilities: list[ChoiceProbability] = Field(description="of all choices, in order; their sum is 1")


class ScoreProbability(ResponseModel):
    value: int = Field(description="the level's index")
    label: str
    probability: float


class ScoreAnswer(ConfidentAnswer):
    type: Literal["score"]
    score: float = Field(description="the mean of the levels' indices, weighted by their probabilities")
    probabilities: list[ScoreProbability] = Field(description="of all levels, in order; their sum is 1")


class DecisionObject(ResponseModel):
    model: str
    answers: list[PredicateAnswer | ChoiceAnswer | ScoreAnswer] = Field(description="in the order of the questions")
    usage: ResponseUsage
