"""Validation of the bodies that clients send."""

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.decision_create_params import DecisionCreateParams
from openai.types.responses import response_create_params
from pydantic import BaseModel, ValidationError

from services.gateway.api.anthropic_messages.body import CountTokensBody, MessageBody
from services.gateway.api.base_models import OfModel
from services.gateway.api.openai_decisions.body import DecisionBody
from services.gateway.api.openai_responses.body import ResponseBody
from services.gateway.api.other_fields import ignored_header
from services.gateway.api.request_models import ChatBody, TextBody
from services.gateway.api.routes.batches import BatchBody
from services.gateway.api.routes.tokens import TokenizeBody

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "How many pears?"}]}
TEXT: dict[str, Any] = {"prompt": "How many pears?"}
RESPONSE: dict[str, Any] = {"input": "How many pears?"}
MESSAGE: dict[str, Any] = {**CHAT, "max_tokens": 8}
DECISION: dict[str, Any] = {**RESPONSE, "questions": [{"type": "predicate", "instructions": "There are pears."}]}

# Fields of other servers that would change the answer.
EFFECTIVE = {
    *("add_generation_prompt", "allowed_token_ids", "bad_words", "best_of", "cfg_scale", "chat_template"),
    *("chat_template_kwargs", "continue_final_message", "diffusion_config", "diffusion_max_steps", "documents"),
    *("frequency_penalty", "functions", "grammar", "guideline", "length_penalty", "logit_bias", "logits_processors"),
    *("logprob_token_ids", "max_new_tokens", "max_output_tokens", "mcp_servers", "min_tokens", "modalities"),
    *("mirostat", "negative_prompt", "tfs_z", "top_n_sigma", "xtc_probability"),
    *("no_repeat_ngram_size", "num_beams", "nvext", "prompt_logprobs", "regex", "remasking", "repetition_detection"),
    *("return_full_text", "return_token_ids", "steps", "tool_prompt", "typical_p", "use_beam_search", "vllm_xargs"),
    "watermark",
}
# The values that clients of vLLM and TGI send where they change nothing.
DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(("add_special_tokens", "continue_final_message", "do_sample", "echo"), False),
    **dict.fromkeys(("include_stop_str_in_output", "use_beam_search", "watermark"), False),
    **dict.fromkeys(("add_generation_prompt", "skip_special_tokens", "spaces_between_special_tokens"), True),
    **dict.fromkeys(("allowed_token_ids", "logits_processors", "prompt_logprobs"), None),
    **dict.fromkeys(("return_tokens_as_token_ids", "top_n_tokens"), None),
    "bad_words": [],
    "documents": [],
    **dict.fromkeys(("best_of", "length_penalty", "num_beams", "typical_p"), 1.0),
    **dict.fromkeys(("min_tokens", "no_repeat_ngram_size"), 0),
    "chat_template_kwargs": {},
    "verbosity": "medium",
}
# Fields of OpenAI that do not change a text, so the header names them.
IGNORED = {
    *("access_programs", "metadata", "moderation", "prediction", "prompt_cache_key", "prompt_cache_options"),
    *("image", "max_tool_calls", "prompt_cache_retention", "safety_identifier", "store"),
    *("background_options", "context_management", "stream_options", "truncation", "verbosity"),
}


@pytest.mark.parametrize(("kind", "minimal"), [(ChatBody, CHAT), (TextBody, TEXT)])
def test_null_means_omitted(kind: type[BaseModel], minimal: dict[str, Any]) -> None:
    optional = [name for name, field in kind.model_fields.items() if not field.is_required()]
    assert "priority" in optional
    assert kind.model_validate(minimal | dict.fromkeys(optional)) == kind.model_validate(minimal)


def lists_in(schema: Any) -> list[dict[str, Any]]:
    """The lists of a core schema, but those of `prompt`, which are checked before, and those of the document."""
    parts = schema if isinstance(schema, list | tuple) else ()
    named: Iterable[tuple[Any, Any]] = schema.items() if isinstance(schema, dict) else enumerate(parts)
    own = [schema] if isinstance(schema, dict) and schema.get("type") == "list" and "items_schema" in schema else []
    others = ("prompt", "json_schema_input_schema")
    return own + [found for name, part in named if name not in others for found in lists_in(part)]


def kinds_of(base: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for kind in base.__subclasses__():
        yield kind
        yield from kinds_of(kind)


@pytest.mark.parametrize("kind", [BatchBody, *dict.fromkeys(kinds_of(OfModel))])
def test_every_list_fails_at_its_first_invalid_item(kind: type[BaseModel]) -> None:
    items = [each["items_schema"] for each in lists_in(kind.__pydantic_core_schema__) if not each.get("fail_fast")]
    assert [each for each in items if each["type"] != "any"] == []


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (ChatBody, {"messages": [{"role": "wizard", "content": ""}] * 1000}),
        (ChatBody, {"messages": [{"role": "user", "content": [{"type": "text", "text": "", "logprobs": 5}] * 1000}]}),
        (ResponseBody, RESPONSE | {"metadata": dict.fromkeys(map(str, range(1000)), 5)}),
        (BatchBody, dict.fromkeys(map(str, range(1000)), 5)),
    ],
)
def test_few_of_many_errors_are_reported(kind: type[BaseModel], body: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as refusal:
        kind.model_validate(body)
    assert refusal.value.error_count() <= 4


def test_an_error_shows_the_valid_form() -> None:
    with pytest.raises(ValidationError) as refusal:
        ChatBody.model_validate(CHAT | {"messages": [{"role": "user", "content": [{"type": "{image}"}]}]})
    assert " {'type': 'text', 'text': '...'}, not of the type '{image}'; " in refusal.value.errors()[0]["msg"]


@pytest.mark.parametrize(
    ("kind", "minimal", "name"),
    [
        (kind, minimal, name)
        for kind, minimal in (
            *((ChatBody, CHAT), (TextBody, TEXT), (ResponseBody, RESPONSE), (MessageBody, MESSAGE)),
            (DecisionBody, DECISION),
        )
        for name in sorted(EFFECTIVE - kind.model_fields.keys())
    ],
)
def test_a_field_that_would_change_the_answer_is_refused_by_name(
    kind: type[BaseModel], minimal: dict[str, Any], name: str
) -> None:
    with pytest.raises(ValidationError) as refusal:
        kind.model_validate(minimal | {name: "of another server"})
    [error] = refusal.value.errors()
    assert error["ctx"]["name"] == name
    assert f"{name} is not supported" in error["msg"]


def test_defaults_of_other_servers_are_accepted_and_not_named() -> None:
    assert ignored_header(ChatBody.model_validate(CHAT | DEFAULTS)) == {}
    of_prompts = {name: value for name, value in DEFAULTS.items() if name != "add_special_tokens"}
    assert ignored_header(TextBody.model_validate(TEXT | of_prompts)) == {}


@pytest.mark.parametrize("value", [True, False])
def test_special_tokens_around_a_plain_prompt_are_named_as_ignored(value: bool) -> None:
    body = TextBody.model_validate(TEXT | {"add_special_tokens": value})
    assert list(ignored_header(body).values()) == ["add_special_tokens"]


@pytest.mark.parametrize(
    ("kind", "params"),
    [
        (ChatBody, chat_create_params.CompletionCreateParamsBase),
        (TextBody, completion_create_params.CompletionCreateParamsBase),
        (ResponseBody, response_create_params.ResponseCreateParamsBase),
        (DecisionBody, DecisionCreateParams),
    ],
)
def test_every_field_of_openai_is_known(kind: type[ChatBody], params: type[Any]) -> None:
    known = {*kind.model_fields, *kind.neutral, *IGNORED}
    assert sorted(set(params.__annotations__) - known) == []


PART = {"type": "text", "text": "Be short.", "cache_control": {"type": "ephemeral"}}
INPUT_PART = PART | {"type": "input_text"}


@pytest.mark.parametrize(
    ("kind", "minimal", "named"),
    [
        (ChatBody, {**CHAT, "messages": [{"role": "user", "content": [PART]}]}, "messages[0].content[0]"),
        (TokenizeBody, {**CHAT, "messages": [{"role": "user", "content": [PART]}]}, "messages[0].content[0]"),
        (ResponseBody, {**RESPONSE, "input": [{"role": "user", "content": [INPUT_PART]}]}, "input[0].content[0]"),
        (MessageBody, {**MESSAGE, "messages": [{"role": "user", "content": [PART]}]}, "messages[0].content[0]"),
        (MessageBody, {**MESSAGE, "system": [PART]}, "system[0]"),
        (CountTokensBody, {**CHAT, "system": [PART]}, "system[0]"),
    ],
)
def test_an_ignored_field_of_a_part_is_named(kind: type[BaseModel], minimal: dict[str, Any], named: str) -> None:
    assert list(ignored_header(kind.model_validate(minimal)).values()) == [f"{named}.cache_control"]


def test_a_part_of_an_earlier_reply_has_no_ignored_field() -> None:
    part = {"type": "output_text", "text": "29", "annotations": [], "logprobs": []}
    body = {**RESPONSE, "input": [{"role": "assistant", "content": [part]}, {"role": "user", "content": "Sure?"}]}
    assert ignored_header(ResponseBody.model_validate(body)) == {}
