"""langchain-openai, the classes ChatOpenAI and OpenAI."""

from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel

QUESTION = "A shop has 5 apples and buys 7 more. How many apples are there?"
ANSWER = "The answer is 12."

chat = ChatOpenAI(model="demo-block")


class Total(BaseModel):
    total: int


def test_invoke() -> None:
    reply = chat.invoke(QUESTION)
    assert ANSWER in reply.text
    assert reply.usage_metadata["output_tokens"] > 0


def test_stream() -> None:
    assert ANSWER in "".join(chunk.text for chunk in chat.stream(QUESTION))


def test_batch() -> None:
    assert [ANSWER in reply.text for reply in chat.batch([QUESTION, QUESTION])] == [True, True]


def test_conversation() -> None:
    first = chat.invoke(QUESTION)
    assert chat.invoke([("user", QUESTION), first, ("user", QUESTION)]).text


def test_top_p() -> None:
    assert ChatOpenAI(model="demo-block", temperature=0.7, top_p=0.9, seed=1).invoke(QUESTION).text


def test_completion_batch() -> None:
    assert all(OpenAI(model="demo-block", max_tokens=64).batch([QUESTION, "2 + 3 = ?"]))


def test_structured_output() -> None:
    asked = f'{QUESTION} Reply in JSON with the keys "total".'
    assert chat.with_structured_output(Total).invoke(asked).total == 12
    assert chat.with_structured_output(Total, method="function_calling").invoke(QUESTION).total == 12


def test_tools() -> None:
    [call] = chat.bind_tools([Total], tool_choice="required").invoke(QUESTION).tool_calls
    assert (call["name"], call["args"]) == ("Total", {"total": 12})
