"""The reply of /v1/decisions in the OpenAPI document."""

from typing import Literal

from pydantic import Field

from services.gateway.api.openai_responses.response_models import ResponseUsage
from services.gateway.api.response_models import Serving
from services.gateway.view_models import ResponseModel


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
