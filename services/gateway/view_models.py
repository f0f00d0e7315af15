"""The bases of the models that replies are made of."""

from typing import Annotated, Generic, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict

T = TypeVar("T")
Ms = Annotated[float, BeforeValidator(lambda seconds: round(seconds * 1000, 3))]  # validated from seconds


class ResponseModel(BaseModel):
    model_config = ConfigDict(frozen=True)


class List(ResponseModel, Generic[T]):
    object: Literal["list"] = "list"
    data: list[T]


class Page(List[T]):
    has_more: bool
