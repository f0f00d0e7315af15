"""Draws training examples: prompts as users write them with their worked answers, and drills."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from tokenizers import Tokenizer

from experiments.demo_model.answers import worked_answer
from experiments.demo_model.arithmetic import EASY, FULL, Level, random_step
from experiments.demo_model.problems import draw_problem
from experiments.demo_model.tokenizer import ASSISTANT, EOS, SYSTEM, SYSTEM_PROMPTS, USER

BLOCK = 32  # tokens; output lengths are multiples of it
OUTPUT_LENGTHS = (32, 64, 96, 128, 256)
OUTPUT_SHARES = (25, 62, 6, 6, 1)
DRILL_PROMPT = "Equations:"
DRILL_EQUATIONS = 10
DRILL_STEPS = 600  # training steps with mostly drills
RAMP_STEPS = 1200  # after these, until mostly problems


DrawText = Callable[[Level, Random], tuple[str, str]]
"""Draws a prompt and its answer."""
DrawLength = Callable[[int, bool, Random], int]
"""Draws an output length, from the tokens needed and whether it is a drill."""


@dataclass(frozen=True, slots=True)
class Example:
    """One prompt with its answer. Units: tokens."""

    prompt: list[int]
    answer: list[int]
    output_length: int
    drill: bool

    @property
    def length(self) -> int:
        """Length of prompt and output."""
        return len(self.prompt) + self.output_length


def draw_examples(
    tokenizer: Tokenizer, count: int, step: int, rng: Random, draw_text: DrawText, draw_length: DrawLength
) -> list[Example]:
    """Draw `count` examples for the training at `step`.

    At first most are drills and easy problems, which teach the number table; later all problems are of the full level
    and one example in twelve is a drill.
    """
    ramp = min(1.0, max(0.0, (step - DRILL_STEPS) / RAMP_STEPS))
    drill_share = 0.7 + (1 / 12 - 0.7) * ramp
    full_share = 0.3 + 0.7 * ramp
    texts = []
    for _ in range(count):
        drill = rng.random() < drill_share
        level = FULL if rng.random() < full_share else EASY
        prompt, answer = drill_text(level, rng) if drill else draw_text(level, rng)
        texts.append((prompt, answer, drill))
    prompts = tokenizer.encode_batch_fast([prompt for prompt, _, _ in texts])
    answers = tokenizer.encode_batch_fast([answer for _, answer, _ in texts])
    return [
        Example(prompt.ids, answer.ids, draw_length(len(answer.ids) + 1, drill, rng), drill)
        for prompt, answer, (_, _, drill) in zip(prompts, answers, texts, strict=True)
    ]


def output_length(needed: int, drill: bool, rng: Random) -> int:
    """Draw an output length of at least `needed` tokens; a drill has exactly these."""
    if drill:
        return needed
    [length] = rng.choices(OUTPUT_LENGTHS, weights=OUTPUT_SHARES)
    return max(length, -(-needed // BLOCK) * BLOCK)


def problem_text(level: Level, rng: Random) -> tuple[str, str]:
    """Draw a problem of the training set: mostly as a chat, in one case of six as plain text."""
    problem = draw_problem(level, rng, held_out=False)
    answer = worked_answer(problem, rng)
    if rng.random() < 1 / 6:
        return problem.prompt, answer
    earlier = rng.choices((0, 1, 2, 4), weights=(92, 5, 2, 1))[0]
    turns = "".join(_earlier_turn(level, rng) for _ in range(earlier))
    system = f"{SYSTEM}{rng.choice(SYSTEM_PROMPTS)}" if rng.random() < 0.06 else ""
    return f"{system}{turns}{USER}{problem.prompt}{ASSISTANT}", answer


def _earlier_turn(level: Level, rng: Random) -> str:
    problem = draw_problem(level, rng, held_out=False)
    return f"{USER}{problem.prompt}{ASSISTANT}{worked_answer(problem, rng)}{EOS}"


def drill_text(level: Level, rng: Random) -> tuple[str, str]:
    """Draw a row of unrelated equations, which teach the number table fastest."""
    equations = (f"{random_step(level, rng).equation}." for _ in range(DRILL_EQUATIONS))
    return DRILL_PROMPT, " ".join(equations)
