"""instructor, around the openai client."""

import instructor
import openai
import pytest
from instructor.core import InstructorRetryException
from pydantic import BaseModel

MESSAGES = [{"role": "user", "content": "A shop has 5 apples and buys 7 more. How many apples are there?"}]
ANSWER = "The answer is 12."

client = instructor.from_openai(openai.OpenAI())


class Total(BaseModel):
    total: int


def test_plain_text() -> None:
    reply = client.chat.completions.create(model="demo", messages=MESSAGES, response_model=None)
    assert ANSWER in reply.choices[0].message.content


@pytest.mark.xfail(raises=InstructorRetryException, reason="tools are not served")
def test_response_model() -> None:
    assert client.chat.completions.create(model="demo", messages=MESSAGES, response_model=Total).total == 12


@pytest.mark.xfail(raises=InstructorRetryException, reason="JSON mode is not served")
def test_json_mode() -> None:
    json_client = instructor.from_openai(openai.OpenAI(), mode=instructor.Mode.JSON)
    assert json_client.chat.completions.create(model="demo", messages=MESSAGES, response_model=Total).total == 12
