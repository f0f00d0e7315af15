"""openai, the Python client."""

import json
import time
from pathlib import Path

import openai
import pytest
from pydantic import BaseModel

QUESTION = "A shop has 5 apples and buys 7 more. How many apples are there?"
ANSWER = "The answer is 12."
MESSAGES = [{"role": "user", "content": QUESTION}]
IN_JSON = [{"role": "user", "content": f'{QUESTION} Reply in JSON with the keys "total".'}]
PARAMETERS = {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}
CALCULATOR = {"type": "function", "function": {"name": "calculator", "parameters": PARAMETERS}}
END_S = 60.0  # time limit of a batch

client = openai.OpenAI()


class Total(BaseModel):
    total: int


def test_chat() -> None:
    reply = client.chat.completions.create(model="demo-block", messages=MESSAGES)
    assert ANSWER in reply.choices[0].message.content
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens


def test_stream() -> None:
    options = {"include_usage": True}
    chunks = list(
        client.chat.completions.create(model="demo-block", messages=MESSAGES, stream=True, stream_options=options)
    )
    assert ANSWER in "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert chunks[-1].usage.completion_tokens > 0


def test_stream_helper() -> None:
    with client.chat.completions.stream(model="demo-block", messages=MESSAGES) as stream:
        stream.until_done()
        assert ANSWER in stream.get_final_completion().choices[0].message.content


def test_max_tokens() -> None:
    reply = client.chat.completions.create(model="demo-block", messages=MESSAGES, max_tokens=5)
    assert (reply.usage.completion_tokens, reply.choices[0].finish_reason) == (5, "length")


def test_decisions() -> None:
    question = {"type": "choice", "instructions": QUESTION, "choices": [{"value": "12"}, {"value": "13"}]}
    [answer] = client.decisions.create(model="demo-block", input="", questions=[question]).answers
    assert sum(each.probability for each in answer.probabilities) == pytest.approx(1)


def test_n() -> None:
    reply = client.chat.completions.create(model="demo-block", messages=MESSAGES, n=3)
    assert [choice.index for choice in reply.choices] == [0, 1, 2]


def test_top_p() -> None:
    reply = client.chat.completions.create(model="demo-block", messages=MESSAGES, temperature=0.7, top_p=0.9, seed=1)
    assert reply.choices[0].message.content


def test_completion() -> None:
    assert client.completions.create(model="demo-block", prompt=QUESTION).choices[0].text


def test_list_of_prompts() -> None:
    reply = client.completions.create(model="demo-block", prompt=[QUESTION, "2 + 3 = ?"])
    assert [choice.index for choice in reply.choices] == [0, 1]


def test_models() -> None:
    assert [model.id for model in client.models.list()] == ["demo-block"]
    assert client.models.retrieve("demo-block").id == "demo-block"


def test_batch(tmp_path: Path) -> None:
    url, body = "/v1/chat/completions", {"model": "demo-block", "messages": MESSAGES}
    lines = tmp_path / "lines.jsonl"
    lines.write_text(json.dumps({"custom_id": "one", "method": "POST", "url": url, "body": body}))
    file = client.files.create(file=lines, purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint=url, completion_window="24h")
    deadline_s = time.monotonic() + END_S
    while batch.status in {"validating", "in_progress", "finalizing"} and time.monotonic() < deadline_s:
        time.sleep(0.2)
        batch = client.batches.retrieve(batch.id)
    assert batch.status == "completed"
    assert ANSWER in client.files.content(batch.output_file_id).text


def test_errors() -> None:
    with pytest.raises(openai.NotFoundError) as refusal:
        client.chat.completions.create(model="other", messages=MESSAGES)
    assert refusal.value.code == "model_not_found"


def test_parse() -> None:
    reply = client.chat.completions.parse(model="demo-block", messages=IN_JSON, response_format=Total)
    assert reply.choices[0].message.parsed.total == 12


def test_json_object() -> None:
    form = {"type": "json_object"}
    reply = client.chat.completions.create(model="demo-block", messages=IN_JSON, response_format=form)
    assert json.loads(reply.choices[0].message.content) == {"total": 12}


def test_tools() -> None:
    first = client.chat.completions.create(model="demo-block", messages=MESSAGES, tools=[CALCULATOR])
    assert first.choices[0].finish_reason == "tool_calls"
    [call] = first.choices[0].message.tool_calls
    assert json.loads(call.function.arguments) == {"expression": "5+7"}
    result = {"role": "tool", "tool_call_id": call.id, "content": "12"}
    messages = [*MESSAGES, first.choices[0].message, result]
    second = client.chat.completions.create(model="demo-block", messages=messages, tools=[CALCULATOR])
    assert ANSWER in second.choices[0].message.content


def test_parallel_tools() -> None:
    messages = [{"role": "user", "content": "What is 25 + 33 and what is 4 * 5?"}]
    for several, expected in ((True, ["25+33", "4*5"]), (False, ["25+33"])):
        reply = client.chat.completions.create(
            model="demo-block", messages=messages, tools=[CALCULATOR], parallel_tool_calls=several
        )
        calls = reply.choices[0].message.tool_calls
        assert [json.loads(call.function.arguments)["expression"] for call in calls] == expected


def test_tool_choices() -> None:
    named = {"type": "function", "function": {"name": "calculator"}}
    for choice in ("required", named):
        reply = client.chat.completions.create(
            model="demo-block", messages=MESSAGES, tools=[CALCULATOR], tool_choice=choice
        )
        assert [call.function.name for call in reply.choices[0].message.tool_calls] == ["calculator"]
    reply = client.chat.completions.create(
        model="demo-block", messages=MESSAGES, tools=[CALCULATOR], tool_choice="none"
    )
    assert ANSWER in reply.choices[0].message.content


def test_tools_stream() -> None:
    with client.chat.completions.stream(model="demo-block", messages=MESSAGES, tools=[CALCULATOR]) as stream:
        kinds = {event.type for event in stream}
        [call] = stream.get_final_completion().choices[0].message.tool_calls
    assert "tool_calls.function.arguments.delta" in kinds
    assert json.loads(call.function.arguments) == {"expression": "5+7"}


def test_parse_tools() -> None:
    tool = openai.pydantic_function_tool(Total)
    reply = client.chat.completions.parse(model="demo-block", messages=MESSAGES, tools=[tool], tool_choice="required")
    assert reply.choices[0].message.tool_calls[0].function.parsed_arguments.total == 12


def test_logprobs() -> None:
    reply = client.chat.completions.create(model="demo-block", messages=MESSAGES, logprobs=True, top_logprobs=2)
    assert [len(token.top_logprobs) for token in reply.choices[0].logprobs.content] == [
        2
    ] * reply.usage.completion_tokens


def test_responses() -> None:
    assert ANSWER in client.responses.create(model="demo-block", input=QUESTION).output_text


def test_responses_parse() -> None:
    reply = client.responses.parse(model="demo-block", input=IN_JSON, text_format=Total)
    assert reply.output_parsed.total == 12


def test_responses_tools() -> None:
    tools = [{"type": "function", "name": "calculator", "parameters": PARAMETERS}]
    first = client.responses.create(model="demo-block", input=QUESTION, tools=tools)
    [call] = first.output
    assert json.loads(call.arguments) == {"expression": "5+7"}
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "12"}
    second = client.responses.create(model="demo-block", input=[*MESSAGES, call, result], tools=tools)
    assert ANSWER in second.output_text
