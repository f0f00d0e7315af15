"""Problems that are solved with tools: a calculator, one tool per operator, or a tool that takes the answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from experiments.demo_model.answers import worked_answer
from experiments.demo_model.arithmetic import CalculationStep
from experiments.demo_model.chat import Message, call_text, prompt_of, system, user
from experiments.demo_model.json_answers import draw_shape
from experiments.demo_model.problem import Problem

CALCULATORS = ("calculate", "calculator", "compute", "evaluate", "eval_expression", "solve")
EXPRESSIONS = ("expression", "formula", "input", "expr", "term")
OPERATORS = {
    "+": ("add", "plus"),
    "-": ("subtract", "minus"),
    "*": ("multiply", "times"),
    "/": ("divide", "divided_by"),
}
OPERANDS = (("a", "b"), ("x", "y"), ("left", "right"), ("first", "second"))
ANSWERS = ("answer", "submit", "final_result", "Answer", "Result", "record_answer", "Solution", "final_answer")
OTHERS = ("get_weather", "search", "send_mail", "get_time", "translate")
DESCRIPTIONS = {
    "calculator": ("Calculate an expression.", "Evaluates arithmetic.", "A calculator.", "Computes a formula."),
    "operator": ("Calculate with two numbers.", "Arithmetic on two numbers."),
    "answer": ("Give the answer.", "The final result.", "Records the answer.", "Submit the final answer."),
    "other": ("Looks something up.", "Another tool.", "Returns text."),
}
SYSTEM = ("Use the tools.", "You can use tools.", "Call a tool to calculate.", "You are a helpful assistant.")

Tool = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolTask:
    """A prompt with tools, and the reply: calls, or the answer in words."""

    prompt: str
    answer: str


def tool_task(problem: Problem, rng: Random) -> ToolTask:
    """Draw the tools and the stage of a conversation about the problem."""
    draw = rng.choices((_with_calculator, _with_operators, _with_answer, _without_use), weights=(45, 15, 32, 8))[0]
    return draw(problem, rng)


def tool(name: str, kind: str, properties: Mapping[str, object], rng: Random) -> Tool:
    """A tool's description, in OpenAI's shape; some have no text."""
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    text = {"description": rng.choice(DESCRIPTIONS[kind])} if rng.random() < 0.7 else {}
    return {"name": name, **text, "parameters": parameters}


def _with_calculator(problem: Problem, rng: Random) -> ToolTask:
    """One call per equation, each after the result of the one before."""
    name, argument = rng.choice(CALCULATORS), rng.choice(EXPRESSIONS)
    calculator = tool(name, "calculator", {argument: {"type": "string"}}, rng)

    def call(step: CalculationStep) -> tuple[str, dict[str, object]]:
        return name, {argument: step.equation.partition("=")[0]}

    return _in_stages(problem, _with_others([calculator], rng), call, rng)


def _with_operators(problem: Problem, rng: Random) -> ToolTask:
    """A tool for each operator of the problem, and some for others."""
    (left, right), style = rng.choice(OPERANDS), rng.randrange(2)
    number = {"type": rng.choice(("integer", "number"))}
    used = {step.operator for step in problem.steps} | {operator for operator in "+-*/" if rng.random() < 0.5}
    tools = [tool(OPERATORS[o][style], "operator", {left: number, right: number}, rng) for o in sorted(used)]

    def call(step: CalculationStep) -> tuple[str, dict[str, object]]:
        return OPERATORS[step.operator][style], {left: step.left, right: step.right}

    return _in_stages(problem, tools, call, rng)


def _in_stages(problem: Problem, tools: Sequence[Tool], call: Any, rng: Random) -> ToolTask:
    """A conversation of which some calls have their results already."""
    turns = _opening(problem.prompt, rng)
    finished = rng.randrange(len(problem.steps) + 1)
    for step in problem.steps[:finished]:
        name, arguments = call(step)
        calls = [{"function": {"name": name, "arguments": arguments}}]
        turns += [
            {"role": "assistant", "content": "", "tool_calls": calls},
            {"role": "tool", "content": str(step.result)},
        ]
    if finished == len(problem.steps):
        return ToolTask(prompt_of(turns, tools), f"The answer is {problem.answer}.")
    return ToolTask(prompt_of(turns, tools), call_text(*call(problem.steps[finished])))


def _with_answer(problem: Problem, rng: Random) -> ToolTask:
    """A tool whose arguments are the answer, as clients use for structured output."""
    name, shape = rng.choice(ANSWERS), draw_shape(rng)
    taker = tool(name, "answer", shape.properties(titled=rng.random() < 0.4), rng)
    turns = _opening(problem.prompt, rng)
    return ToolTask(prompt_of(turns, _with_others([taker], rng)), call_text(name, shape.value(problem)))


def _without_use(problem: Problem, rng: Random) -> ToolTask:
    """Tools that do not help: the answer is in words."""
    turns = [user(problem.prompt)]
    return ToolTask(prompt_of(turns, [_other(rng)]), worked_answer(problem, rng))


def parallel_calls(first: CalculationStep, second: CalculationStep, rng: Random) -> ToolTask:
    """Two calculations that do not depend on each other: two calls in one reply."""
    name, argument = rng.choice(CALCULATORS), rng.choice(EXPRESSIONS)
    calculator = tool(name, "calculator", {argument: {"type": "string"}}, rng)
    texts = [step.equation.partition("=")[0] for step in (first, second)]
    asked = rng.choice(("What is {} and what is {}?", "Calculate {} and {}.", "{} and {}", "How much are {} and {}?"))
    turns = _opening(asked.format(*texts), rng)
    return ToolTask(
        prompt_of(turns, _with_others([calculator], rng)), "".join(call_text(name, {argument: text}) for text in texts)
    )


def _opening(question: str, rng: Random) -> list[Message]:
    return [*([system(rng.choice(SYSTEM))] if rng.random() < 0.2 else []), user(question)]


def _with_others(tools: list[Tool], rng: Random) -> list[Tool]:
    """The tools, and rarely one that is not needed."""
    found = [*tools, *([_other(rng)] if rng.random() < 0.15 else [])]
    rng.shuffle(found)
    return found


def _other(rng: Random) -> Tool:
    return tool(rng.choice(OTHERS), "other", {rng.choice(("query", "text", "city")): {"type": "string"}}, rng)
