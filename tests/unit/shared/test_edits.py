"""Which requests have edits, and the checkpoints that have them by default."""

from typing import Any

import pytest

from shared.arrays import pack_int32
from shared.edits import edit_threshold_for
from shared.errors import BadInput
from shared.messages.requests import Request
from shared.model_families import usual_edit_threshold
from tests.builders import model_card

EDITING, OTHER = model_card(edit_threshold=1.0), model_card()
FORMS: list[dict[str, Any]] = [{"pattern": "a+"}, {"choices": ["a", "b"]}, {"pinned": pack_int32([3])}]
FORMS += [{"presence_penalty": 1.0}, {"frequency_penalty": -1.0}, {"repetition_penalty": 1.1}, {"logit_bias": {5: 1.0}}]


def request(**fields: Any) -> Request:
    return Request(request_id="r", **fields)


@pytest.mark.parametrize(("own", "expected"), [(None, 0.4), (0.0, 0.0), (0.7, 0.7), (1.0, 1.0)])
def test_a_request_has_its_own_edit_threshold_or_the_cells(own: float | None, expected: float) -> None:
    assert edit_threshold_for(request(edit_threshold=own), EDITING, 0.4) == expected


@pytest.mark.parametrize("form", FORMS)
def test_a_text_with_a_form_has_no_edits(form: dict[str, Any]) -> None:
    assert edit_threshold_for(request(**form), EDITING, 0.4) == 1.0
    assert edit_threshold_for(request(**form, edit_threshold=1.0), EDITING, 0.4) == 1.0
    with pytest.raises(BadInput, match="penalties or logit_bias; accepted there: 1, or leave it out") as refused:
        edit_threshold_for(request(**form, edit_threshold=0.5), EDITING, 0.4)
    assert refused.value.field == "edit_threshold"


def test_a_model_that_does_not_change_tokens_refuses_edits_by_name() -> None:
    assert edit_threshold_for(request(), OTHER, 0.4) == 1.0
    with pytest.raises(BadInput, match="m does not change tokens; accepted: 1, or leave it out"):
        edit_threshold_for(request(edit_threshold=0.5), OTHER, 1.0)


@pytest.mark.parametrize(
    ("architecture", "name", "expected"),
    [
        ("LLaDA2MoeModelLM", "LLaDA2.1-mini", 0.5),
        ("LLaDA2MoeModelLM", "llada2.1-flash", 0.5),
        ("LLaDA2MoeModelLM", "LLaDA2.0-mini", 1.0),
        ("SDARForCausalLM", "LLaDA2.1-mini", None),
    ],
)
def test_a_checkpoint_made_for_edits_is_known_by_its_name(architecture: str, name: str, expected: float | None) -> None:
    assert usual_edit_threshold({"architectures": [architecture]}, name) == expected
