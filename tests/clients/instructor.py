"""instructor, around the openai client."""

import instructor
import openai
from pydantic import BaseModel

MESSAGES = [{"role": "user", "content": "A shop has 5 apples and buys 7 more. How many apples are there?"}]
IN_JSON = [{"role": "user", "content": f'{MESSAGES[0]["content"]} Reply in JSON with the keys "total".'}]
ANSWER = "The answer is 12."

client = instructor.from_openai(openai.OpenAI())


class Total(BaseModel):
    total: int


def test_plain_text() -> None:
    reply = client.chat.completions.create(model="demo-block", messages=MESSAGES, response_model=None)
    assert ANSWER in reply.choices[0].message.content


def test_response_model() -> None:
    assert client.chat.completions.create(model="demo-block", messages=MESSAGES, response_model=Total).total == 12


def test_json_modes() -> None:
    for mode in (instructor.Mode.JSON, instructor.Mode.JSON_SCHEMA):
        in_json = instructor.from_openai(openai.OpenAI(), mode=mode)
        reply = in_json.chat.completions.create(model="demo-block", messages=IN_JSON, response_model=Total)
        assert reply.total == 12
