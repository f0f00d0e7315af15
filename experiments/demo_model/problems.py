"""Draws grade-school word problems with their calculation; `answers` writes the worked answer.

All choices use a `random.Random`, so the same seed gives the same problems.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from random import Random

from experiments.demo_model.arithmetic import Level
from experiments.demo_model.kinds import containers, pair, plain, sharing, shopping
from experiments.demo_model.problem import Problem
from experiments.demo_model.stories import story
from experiments.demo_model.words import NUMBER_NAMES

KINDS: tuple[Callable[[Level, Random], Problem], ...] = (story, containers, shopping, pair, sharing, plain)
KIND_SHARES = (52, 12, 8, 9, 7, 12)


def draw_problem(level: Level, rng: Random, *, held_out: bool) -> Problem:
    """Draw a problem on the given side of the split."""
    while True:
        problem = random_problem(level, rng)
        if problem.held_out == held_out:
            return problem


def random_problem(level: Level, rng: Random) -> Problem:
    """Draw one problem of any kind, held out or not, in careful or careless spelling."""
    [draw] = rng.choices(KINDS, KIND_SHARES)
    problem = draw(level, rng)
    return replace(problem, prompt=careless(problem.prompt, rng))


def careless(prompt: str, rng: Random) -> str:
    """Sometimes write small numbers in words, all letters in lower case, or no final mark."""
    if rng.random() < 0.05:
        prompt = re.sub(r"\b\d+\b", lambda found: number_name(int(found[0])), prompt)
    if rng.random() < 0.1:
        prompt = prompt.lower()
    return prompt.rstrip("?.") if rng.random() < 0.1 else prompt


def number_name(number: int) -> str:
    """ "seven" for 7; larger numbers stay in digits."""
    return NUMBER_NAMES[number] if number < len(NUMBER_NAMES) else str(number)
