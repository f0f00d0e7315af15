"""Forms compile without delaying those of others."""

import asyncio

import pytest

from services.gateway.api.form_compiler import Form, FormCompiler
from services.gateway.api.tool_calls.call_syntax import JsonCalls
from services.gateway.api.tool_calls.use import ToolUse
from shared.errors import BadInput

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
    assert small.max_bytes == 11
    assert not any(task.done() for task in large[1:])
    for task in large:
        task.cancel()
    await asyncio.gather(*large, return_exceptions=True)


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
