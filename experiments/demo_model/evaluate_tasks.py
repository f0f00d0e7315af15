"""How often the block-causal demo model is right, by the form of the answer."""

import json
from collections.abc import Sequence
from random import Random

from tokenizers import Tokenizer

from experiments.demo_model.arithmetic import FULL
from experiments.demo_model.evaluate import decode_blocks, is_right
from experiments.demo_model.problems import draw_problem
from experiments.demo_model.tasks import Task, TaskKind, task_of
from experiments.report import markdown_table
from services.worker.model.decoder import PackedDecoder

TASKS_PER_KIND = 200


def held_out_tasks(kind: TaskKind, seed: int, count: int = TASKS_PER_KIND) -> list[Task]:
    """Tasks about problems that training never sees; the same seed gives the same tasks."""
    rng = Random(f"held out {kind} {seed}")
    return [task_of(kind, draw_problem(FULL, rng, held_out=True), FULL, rng) for _ in range(count)]


def is_right_reply(task: Task, reply: str) -> bool:
    """Whether a reply gives the task's result: in prose its last sentence, as JSON the same value, as calls the same
    text."""
    if task.kind is TaskKind.JSON:
        try:
            return bool(json.loads(reply) == json.loads(task.reply))
        except json.JSONDecodeError:
            return False
    if "The answer is" in task.reply:
        return is_right(reply, str(task.number))
    return reply == task.reply


def task_table(decoder: PackedDecoder, tokenizer: Tokenizer, seed: int, thresholds: Sequence[float]) -> str:
    """Exact match by kind and threshold, as the Markdown table of the model card."""
    rows = []
    for kind in TaskKind:
        tasks, cells = held_out_tasks(kind, seed), []
        for threshold in thresholds:
            replies = decode_blocks(decoder, tokenizer, [task.prompt for task in tasks], threshold)
            right = [is_right_reply(task, reply.text) for task, reply in zip(tasks, replies, strict=True)]
            cells.append(f"{sum(right) / len(right):.1%}")
        rows.append((kind.value, *cells))
    return markdown_table(("answer", *(f"at {threshold}" for threshold in thresholds)), rows)
