"""The bases of the models of bodies. For fields of other servers see other_fields.py."""

import json
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import AliasChoices, BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

from services.gateway.api.other_fields import NEUTRAL, effective_field


class Lenient(BaseModel):
    """Without type coercion. Unknown fields are kept, and refused only if they would change the answer."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)
    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = NEUTRAL

    @model_validator(mode="before")
    @classmethod
    def _null_as_omitted(cls, sent: Any) -> Any:
        return {name: value for name, value in sent.items() if value is not None} if isinstance(sent, dict) else sent

    @model_validator(mode="after")
    def _refuse_effective(self) -> Self:
        name = effective_field(self.model_extra or {}, self.neutral)
        if name is not None:
            for field, info in type(self).model_fields.items():
                if isinstance(info.validation_alias, AliasChoices) and name in info.validation_alias.choices:
                    raise unsupported_field(name, f"{name} is another name of {field}; give one of them")
            values = ", ".join(json.dumps(value) for value in self.neutral[name])
            accepted = f"; accepted: {values}" if values else ""
            raise unsupported_field(name, f"{name} is not supported{accepted}")
        return self


class OfModel(Lenient):
    """A body for one of the served models."""

    model: str | None = None  # its name; None, or empty: the only one


def unsupported(message: str) -> PydanticCustomError:
    return PydanticCustomError("unsupported", "{message}", {"message": message})


def unsupported_field(name: str, text: str) -> PydanticCustomError:
    """The error of the field `name` of a model, whose whole text is given."""
    return PydanticCustomError("unsupported_field", "{text}", {"name": name, "text": text})


def wrong_field(name: str, text: str) -> PydanticCustomError:
    """The error of the field `name` of a model, from a validator of the whole model."""
    return PydanticCustomError("wrong_field", "{text}", {"name": name, "text": text})
