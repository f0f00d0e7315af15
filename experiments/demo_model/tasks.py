"""The tasks of the block-causal demo model: problems in prose, as JSON, with tools, and in chats of two turns."""

from dataclasses import dataclass
from enum import StrEnum
from random import Random

from experiments.demo_model.answers import worked_answer
from experiments.demo_model.arithmetic import Level, random_step
from experiments.demo_model.chat import assistant, prompt_of, system, user
from experiments.demo_model.examples import problem_text
from experiments.demo_model.follow_ups import follow_up_text
from experiments.demo_model.json_answers import json_text
from experiments.demo_model.problem import Problem
from experiments.demo_model.problems import draw_problem
from experiments.demo_model.tokenizer import SYSTEM_PROMPTS
from experiments.demo_model.tool_calls import parallel_calls, tool_task


class TaskKind(StrEnum):
    """The form of a task's answer."""

    PROSE = "prose"
    JSON = "json"
    TOOLS = "tools"
    FOLLOW_UP = "follow-up"


SHARES = {TaskKind.PROSE: 50, TaskKind.JSON: 20, TaskKind.TOOLS: 18, TaskKind.FOLLOW_UP: 12}
PARALLEL_SHARE = 0.12  # of the tasks with tools
LONG_SHARE = 0.05  # of the tasks in prose: a long conversation or a long first message of the system


@dataclass(frozen=True, slots=True)
class Task:
    """A prompt in the chat format, and a right reply; `number` is the result that the reply states, if it does."""

    kind: TaskKind
    prompt: str
    reply: str
    number: int


def draw_task(level: Level, rng: Random) -> tuple[str, str]:
    """A task for the training: prompt and reply."""
    [kind] = rng.choices(list(SHARES), weights=list(SHARES.values()))
    if kind is TaskKind.PROSE:
        return _long_text(level, rng) if rng.random() < LONG_SHARE else problem_text(level, rng)
    task = task_of(kind, draw_problem(level, rng, held_out=False), level, rng)
    return task.prompt, task.reply


def task_of(kind: TaskKind, problem: Problem, level: Level, rng: Random) -> Task:
    """A task of this kind about the problem."""
    match kind:
        case TaskKind.PROSE:
            return Task(kind, prompt_of([user(problem.prompt)]), worked_answer(problem, rng), problem.answer)
        case TaskKind.JSON:
            return Task(kind, *json_text(problem, rng), problem.answer)
        case TaskKind.TOOLS:
            made = (
                parallel_calls(random_step(level, rng), random_step(level, rng), rng)
                if rng.random() < PARALLEL_SHARE
                else tool_task(problem, rng)
            )
            return Task(kind, made.prompt, made.answer, problem.answer)
        case TaskKind.FOLLOW_UP:
            prompt, reply, second = follow_up_text(problem, level, rng)
            return Task(kind, prompt, reply, second.answer)


def _long_text(level: Level, rng: Random) -> tuple[str, str]:
    """A problem after many turns, or after worked examples in the system's message."""
    problems = [draw_problem(level, rng, held_out=False) for _ in range(rng.randint(4, 12))]
    *earlier, last = problems
    if rng.random() < 0.5:
        turns = [turn for one in earlier for turn in (user(one.prompt), assistant(worked_answer(one, rng)))]
    else:
        worked = " ".join(f"{one.prompt} {worked_answer(one, rng)}" for one in earlier)
        turns = [system(f"{rng.choice(SYSTEM_PROMPTS)} {worked}")]
    return prompt_of([*turns, user(last.prompt)]), worked_answer(last, rng)
