"""Validation of the bodies that clients send."""

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from services.gateway.api.request_models import ChatBody, TextBody

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "How many pears?"}]}
TEXT: dict[str, Any] = {"model": "m", "prompt": "How many pears?"}


@pytest.mark.parametrize(("kind", "minimal"), [(ChatBody, CHAT), (TextBody, TEXT)])
def test_null_means_omitted(kind: type[BaseModel], minimal: dict[str, Any]) -> None:
    optional = [name for name, field in kind.model_fields.items() if not field.is_required()]
    assert "priority" in optional
    assert kind.model_validate(minimal | dict.fromkeys(optional)) == kind.model_validate(minimal)


@pytest.mark.parametrize("items", [{"messages": [{"role": "wizard", "content": ""}] * 1000}, {"stop": [""] * 1000}])
def test_a_list_fails_at_its_first_invalid_item(items: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as refusal:
        ChatBody.model_validate(CHAT | items)
    assert refusal.value.error_count() == 1


def test_an_error_shows_the_valid_form() -> None:
    with pytest.raises(ValidationError) as refusal:
        ChatBody.model_validate(CHAT | {"messages": [{"role": "user", "content": [{"type": "{image}"}]}]})
    assert " {'type': 'text', 'text': '...'}, not of the type '{image}'; " in refusal.value.errors()[0]["msg"]
