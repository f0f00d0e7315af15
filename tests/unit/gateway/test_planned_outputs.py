"""The plans of bodies: their outputs, and the forms of their texts."""

import asyncio
import json
import tracemalloc
from typing import Any

import pytest

from services.gateway.api.field_types import MAX_SLO_MS
from services.gateway.api.form_compiler import Form, FormCompiler
from services.gateway.api.openai_decisions.body import DecisionBody
from services.gateway.api.outputs import DEFAULT_HOLE_TOKENS
from services.gateway.api.plan import BodyPlanner
from services.gateway.api.request_models import TextBody
from services.gateway.api.tool_calls.call_syntax import JsonCalls
from services.gateway.api.tool_calls.use import ToolUse
from services.gateway.stores.conversations import Conversations
from shared.api_keys import ANONYMOUS
from shared.arrays import unpack_int32
from shared.bus.codec import decode, encode
from shared.errors import BadInput, TooLong
from shared.messages.requests import Request
from shared.patterns.automaton import compile_pattern
from shared.pinned import FREE
from shared.text import TextModel
from tests.support.tiny_model import MAX_LENGTH, write_tiny_sdar


@pytest.fixture(scope="module")
def block_causal(tmp_path_factory: pytest.TempPathFactory) -> TextModel:
    return TextModel(write_tiny_sdar(tmp_path_factory.mktemp("models") / "tiny-sdar"), "tiny-sdar")


def planner_of(text: TextModel) -> BodyPlanner:
    return BodyPlanner(text, FormCompiler(), ANONYMOUS, Conversations({}, ""))


async def build(text: TextModel, prompt: str = "abc", **fields: Any) -> Request:
    """The request of a plain completion with these fields and one choice, without a gateway."""
    planner = planner_of(text)
    wanted = await TextBody.model_validate({"model": "m", "prompt": prompt, **fields}).wanted(planner)
    [request] = (await planner.plan(wanted)).requests
    return request


@pytest.mark.parametrize(
    ("prompt", "fields", "block_length", "output"),
    [
        (6, {"max_tokens": 9}, 4, 10),
        (8, {"max_tokens": 9}, 4, 12),
        (6, {"max_tokens": 9, "block_length": 16}, 16, 10),
        (MAX_LENGTH - 3, {"max_tokens": 9}, 4, 3),
    ],
)
async def test_outputs_of_a_block_causal_model_are_whole_blocks_of_the_grid(
    block_causal: TextModel, prompt: int, fields: dict[str, int], block_length: int, output: int
) -> None:
    request = await build(block_causal, "a" * prompt, **fields)
    assert (request.block_length, request.output_tokens) == (block_length, output)
    assert request.max_tokens == min(9, output)


async def test_a_prompt_without_room_for_its_first_block_is_refused(block_causal: TextModel) -> None:
    with pytest.raises(TooLong, match=f"prompt has {MAX_LENGTH} tokens"):
        await build(block_causal, "a" * MAX_LENGTH)


async def test_the_prompts_of_questions_are_not_held_at_once(text: TextModel) -> None:
    question = {"type": "predicate", "instructions": "It is long."}
    body, planner = DecisionBody.model_validate({"input": "a" * 10**6, "questions": [question] * 64}), planner_of(text)
    tracemalloc.start()
    try:
        with pytest.raises(TooLong, match="input has 1000"):
            await planner.plan(await body.wanted(planner))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 20 * 10**6


@pytest.mark.parametrize(
    "fields",
    [
        *({name: 5e-324} for name in ("slo_ms", "temperature", "repetition_penalty", "top_p", "min_threshold")),
        {"slo_ms": MAX_SLO_MS, "temperature": 2, "repetition_penalty": 10, "seed": 2**63 - 1, "top_k": 2**31 - 1},
    ],
)
async def test_a_body_of_extreme_values_becomes_a_valid_request(text: TextModel, fields: dict[str, Any]) -> None:
    request = await build(text, **fields)
    assert decode(encode(request), Request) == request


def layout(text: TextModel, request: Request) -> str:
    """The pinned positions: free ones as `_`, end-of-text tokens as `$`."""
    signs = {FREE: "_", text.card.eos_token_id: "$"}
    return "".join(signs.get(token) or text.decode([token]) for token in unpack_int32(request.pinned).tolist())


@pytest.mark.parametrize(
    ("fields", "wanted", "text_tokens"),
    [
        ({"suffix": "xy", "max_tokens": 3}, "___xy$$$", 3),
        ({"suffix": "xy", "max_tokens": 6}, "______xy", 6),
        ({"suffix": "x", "max_tokens": 8}, "________x$$$$$$$", 8),
        ({"template": "a<mask:2>b"}, "a__b$$$$", 4),
        ({"template": "<mask:1>é<mask:2>"}, "_\ufffd\ufffd__$$$", 5),
        ({"template": "a<mask:2><mask:1>b <mask>", "max_tokens": 3}, "a___b <mask>$$$$", 12),
    ],
)
async def test_the_output_has_the_given_text_and_ends_after_it(
    text: TextModel, fields: dict[str, Any], wanted: str, text_tokens: int
) -> None:
    request = await build(text, block_length=8, **fields)
    assert layout(text, request) == wanted
    assert (request.output_tokens, request.max_tokens) == (len(wanted), text_tokens)


async def test_a_hole_before_a_suffix_has_a_default_length_and_is_cut_to_the_room(text: TextModel) -> None:
    assert (await build(text, suffix="x")).max_tokens == DEFAULT_HOLE_TOKENS
    cut = await build(text, suffix="x" * 400, max_tokens=500)
    assert (cut.max_tokens, cut.output_tokens) == (80, 480)  # 15 blocks fit behind the prompt
    assert (await build(text, suffix="")).pinned == b""


@pytest.mark.parametrize(
    ("fields", "field", "message"),
    [
        ({"template": "a"}, "template", "has no hole"),
        ({"template": ""}, "template", "has no hole"),
        ({"template": "a<mask:0>"}, "template", "N from 1 to 8192"),
        ({"template": "a<mask:9999999999>"}, "template", "N from 1 to 8192"),
        ({"template": "a<mask:x>"}, "template", "N from 1 to 8192"),
        ({"template": "<mask:8192>" * 50}, "template", "have 409600 tokens"),
        ({"template": "<mask:500>a"}, "template", "has 501 tokens with its holes"),
        ({"template": "<mask:2>a<mask:2>", "max_tokens": 3}, "max_tokens", "holes of template have 4 tokens"),
        ({"template": "<mask:2><|mdm_mask|>"}, "template", "must not contain the mask token"),
        ({"suffix": "x" * MAX_LENGTH}, "suffix", f"has {MAX_LENGTH + 1} tokens"),
        ({"suffix": "<|mdm_mask|>"}, "suffix", "must not contain the mask token"),
    ],
)
async def test_an_output_that_cannot_be_served_is_refused_by_its_field(
    text: TextModel, fields: dict[str, Any], field: str, message: str
) -> None:
    with pytest.raises(BadInput, match=message) as refused:
        await build(text, **fields)
    assert refused.value.field == field


@pytest.mark.parametrize("fields", [{"suffix": "x"}, {"template": "<mask:4>x"}, {"template": "a<mask:4>b<mask:4>"}])
async def test_a_block_causal_model_refuses_text_after_a_hole(block_causal: TextModel, fields: dict[str, str]) -> None:
    with pytest.raises(BadInput, match=r"tiny-sdar is block-causal: .* LLaDA and Dream, fill in anywhere") as refused:
        await build(block_causal, **fields)
    assert refused.value.field == next(iter(fields))


async def test_a_block_causal_model_continues_the_text_before_a_hole(block_causal: TextModel) -> None:
    request = await build(block_causal, template="ab<mask:5>")
    assert layout(block_causal, request) == "ab"  # its text may end within the hole
    assert (request.output_tokens, request.max_tokens) == (9, 7)


NO_TOOLS = ToolUse(JsonCalls())
SMALL = Form("guided_json", "schema", {"type": "string", "pattern": "^[a-z]{5,9}$"})


def hostile(number: int) -> Form:
    """A form that takes a second or more to compile."""
    return Form("guided_json", "schema", {"type": "string", "pattern": f"a[ab]{{12}}[ab]{{0,{number}}}"})


async def test_a_small_form_does_not_wait_for_large_ones_of_another_key() -> None:
    compiler = FormCompiler()
    large = [asyncio.create_task(compiler.form_of([hostile(n)], NO_TOOLS, owner="greedy")) for n in range(1, 4)]
    await asyncio.sleep(0)
    small = await compiler.form_of([SMALL], NO_TOOLS, owner="other")
    assert small.max_tokens == 12
    assert not any(task.done() for task in large[1:])
    for task in large:
        task.cancel()
    await asyncio.gather(*large, return_exceptions=True)


async def test_lists_have_fewer_states_beside_a_large_part() -> None:
    lines = {"type": "array", "maxItems": 300, "items": {"type": "string", "minLength": 1, "maxLength": 400}}
    codes = {"enum": [f"{n * 982_451_653 % 10**12:012}" for n in range(800)]}
    schema = {"properties": {"lines": lines, "code": codes}, "required": ["lines", "code"]}
    found = await FormCompiler().form_of([Form("guided_json", "schema", schema)], NO_TOOLS)
    automaton = compile_pattern(found.pattern)
    most = int(found.left_out[0].removeprefix("guided_json.lines.maxItems="))
    assert automaton.accepts(json.dumps({"lines": ["a" * 400] * most, "code": codes["enum"][7]}))
    assert most >= 40


@pytest.mark.slow
async def test_a_large_form_compiles_in_its_process() -> None:
    compiler = FormCompiler()
    first, second = await asyncio.gather(*(compiler.form_of([hostile(1)], NO_TOOLS) for _ in range(2)))
    assert first is second
    assert first.pattern


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        pytest.param(
            Form("guided_json", "schema", {"type": "string", "pattern": "^[ab]*a[ab]{13}[ab]*a[ab]{13}$"}),
            "too large",
            marks=pytest.mark.slow,
        ),
        (Form("guided_json", "schema", {"enum": [f"{n:050}" for n in range(2_000)]}), "too large"),
    ],
)
async def test_the_reason_of_a_refusal_names_the_field(form: Form, reason: str) -> None:
    with pytest.raises(BadInput, match=reason) as refused:
        await FormCompiler().form_of([form], NO_TOOLS)
    assert refused.value.field == form.field
