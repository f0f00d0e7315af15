"""The bases of the models that replies are made of."""

from typing import Annotated, Generic, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict

T = TypeVar("T")
Ms = Annotated[float, BeforeValidator(lambda seconds: round(seconds * 1000, 3))]  # validated from seconds
Rounded = Annotated[float, AfterValidator(lambda value: round(value, 6))]  # a mean of 0.9 is not 0.8999999999999998


class ResponseModel(BaseModel):
    model_config = ConfigDict(frozen=True)


class List(ResponseModel, Generic[T]):
    object: Literal["list"] = "list"
    data: list[T]


class Page(List[T]):
    has_more: bool
