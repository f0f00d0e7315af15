"""Two-turn chats: the second question changes the first one's result."""

from random import Random

from experiments.demo_model.answers import worked_answer
from experiments.demo_model.arithmetic import CalculationStep, Level, operand_for, operators_for
from experiments.demo_model.chat import assistant, prompt_of, user
from experiments.demo_model.problem import Problem

WORDINGS = {
    "+": ("Now add {}.", "And with {} more?", "Plus {}?", "What if there are {} more?", "Then {} more come. How many?"),
    "-": ("Now subtract {}.", "And without {}?", "Minus {}?", "What if {} are lost?", "Then {} are sold. How many?"),
    "*": ("Now multiply by {}.", "Times {}?", "And {} times as many?", "Multiply that by {}."),
    "/": ("Now divide by {}.", "Divided by {}?", "Share them among {} people.", "And split into {} parts?"),
}
LEADS = {"+": "With {} more we have", "-": "Without {} we have", "*": "{} times as many are", "/": "One of {} parts is"}


def follow_up(value: int, level: Level, rng: Random) -> Problem:
    """A question about the result of an earlier one."""
    operator = rng.choice(operators_for(value, level))
    operand = operand_for(value, operator, level, rng)
    prompt = rng.choice(WORDINGS[operator]).format(operand)
    if operand == 2 and operator in "*/" and rng.random() < 0.5:
        prompt = rng.choice(
            ("Double it.", "And twice as many?") if operator == "*" else ("And half of it?", "Halve it.")
        )
    step = CalculationStep(value, operator, operand, LEADS[operator].format(operand))
    return Problem(prompt, (step,), f"Before there were {value}.", f"Now there are {step.result}.")


def follow_up_text(first: Problem, level: Level, rng: Random) -> tuple[str, str, Problem]:
    """A conversation about `first` with a second question, its answer, and the second problem."""
    second = follow_up(first.answer, level, rng)
    turns = [user(first.prompt), assistant(worked_answer(first, rng)), user(second.prompt)]
    return prompt_of(turns), worked_answer(second, rng), second
