"""Answers in JSON, by a schema that the prompt gives, by its keys, or by the usual shape."""

from dataclasses import dataclass
from random import Random

from experiments.demo_model.chat import Message, prompt_of, system, to_json, user
from experiments.demo_model.problem import Problem

ANSWER_KEYS = ("answer", "result", "total", "value", "number", "count", "final_answer", "solution")
STEPS_KEYS = ("steps", "equations", "calculation", "working", "reasoning", "explanation")
TITLES = ("Answer", "Result", "Solution", "Reply", "Response", "Output")
BARE = ("Answer in JSON.", "Reply in JSON.", "Give the answer as JSON.", "Respond with a JSON object.")
BY_SCHEMA = (
    "Reply in JSON by this schema: {}",
    "Answer in JSON that matches this schema: {}",
    "Respond with JSON of the schema {}",
    "Use this JSON schema: {}",
    "Schema: {}",
)
BY_KEYS = ("Reply in JSON with the keys {}.", "Answer as a JSON object with {}.", "Give JSON with the fields {}.")


@dataclass(frozen=True, slots=True)
class AnswerShape:
    """The keys of a JSON answer and the types of their values."""

    answer_key: str = "answer"
    answer_type: str = "integer"  # or number, string
    steps_key: str = "steps"  # empty: without steps
    steps_type: str = "array"  # of equations; or string
    answer_first: bool = False

    def value(self, problem: Problem) -> dict[str, object]:
        """The answer to a problem."""
        equations = [step.equation for step in problem.steps]
        steps: object = equations if self.steps_type == "array" else ", ".join(equations)
        answer: object = str(problem.answer) if self.answer_type == "string" else problem.answer
        return self._ordered(steps, answer)

    def properties(self, *, titled: bool) -> dict[str, object]:
        """The schema's properties; `titled`: with titles, as pydantic writes them."""
        array = {"type": "array", "items": {"type": "string"}}
        steps: dict[str, object] = dict(array if self.steps_type == "array" else {"type": "string"})
        found = self._ordered(steps, {"type": self.answer_type})
        if not titled:
            return found
        return {key: {"title": key.replace("_", " ").title(), **_mapping(value)} for key, value in found.items()}

    def _ordered(self, steps: object, answer: object) -> dict[str, object]:
        pairs = [(self.answer_key, answer)]
        if self.steps_key:
            pairs.insert(len(pairs) if self.answer_first else 0, (self.steps_key, steps))
        return dict(pairs)


def _mapping(value: object) -> dict[str, object]:
    assert isinstance(value, dict)
    return value


def draw_shape(rng: Random) -> AnswerShape:
    """Draw keys and types."""
    return AnswerShape(
        answer_key="answer" if rng.random() < 0.4 else rng.choice(ANSWER_KEYS),
        answer_type=rng.choices(("integer", "number", "string"), weights=(75, 15, 10))[0],
        steps_key="" if rng.random() < 0.3 else "steps" if rng.random() < 0.4 else rng.choice(STEPS_KEYS),
        steps_type=rng.choices(("array", "string"), weights=(70, 30))[0],
        answer_first=rng.random() < 0.12,
    )


def schema_of(shape: AnswerShape, rng: Random) -> dict[str, object]:
    """The JSON schema of a shape, as people or as pydantic write it."""
    titled = rng.random() < 0.4
    properties = shape.properties(titled=titled)
    required = list(properties)
    if titled:
        title = rng.choice(TITLES)
        return {"properties": properties, "required": required, "title": title, "type": "object"}
    schema: dict[str, object] = {"type": "object", "properties": properties, "required": required}
    return schema | ({"additionalProperties": False} if rng.random() < 0.4 else {})


def json_text(problem: Problem, rng: Random) -> tuple[str, str]:
    """A prompt that asks for JSON, and the answer."""
    way = rng.random()
    shape = AnswerShape() if way < 0.25 else draw_shape(rng)
    if way < 0.25:
        asked = rng.choice(BARE)
    elif way < 0.4:
        asked = rng.choice(BY_KEYS).format(" and ".join(to_json(key) for key in shape.properties(titled=False)))
    else:
        asked = rng.choice(BY_SCHEMA).format(to_json(schema_of(shape, rng)))
    turns: list[Message] = [user(problem.prompt)]
    if rng.random() < 0.5:
        turns.insert(0, system(asked))
    else:
        turns = [user(f"{problem.prompt} {asked}")]
    return prompt_of(turns), to_json(shape.value(problem))
