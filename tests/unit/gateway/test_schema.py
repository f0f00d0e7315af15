"""What clients may send, apart from HTTP."""

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from services.gateway.api.request_models import ChatBody, TextBody

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "How many pears?"}]}
TEXT: dict[str, Any] = {"model": "m", "prompt": "How many pears?"}


@pytest.mark.parametrize(("kind", "least"), [(ChatBody, CHAT), (TextBody, TEXT)])
def test_null_means_omitted(kind: type[BaseModel], least: dict[str, Any]) -> None:
    optional = [name for name, field in kind.model_fields.items() if not field.is_required()]
    assert "priority" in optional
    assert kind.model_validate(least | dict.fromkeys(optional)) == kind.model_validate(least)


@pytest.mark.parametrize("items", [{"messages": [{"role": "wizard", "content": ""}] * 1000}, {"stop": [""] * 1000}])
def test_the_first_wrong_item_of_a_list_ends_its_reading(items: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as wrong:
        ChatBody.model_validate(CHAT | items)
    assert wrong.value.error_count() == 1


def test_an_error_shows_the_valid_form() -> None:
    with pytest.raises(ValidationError) as wrong:
        ChatBody.model_validate(CHAT | {"messages": [{"role": "user", "content": [{"type": "{image}"}]}]})
    assert " {'type': 'text', 'text': '...'}; " in wrong.value.errors()[0]["msg"]
