"""Writes and reads the model directory: configuration, weights, tokenizer, and held-out problems."""

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random

import torch
from tokenizers import Tokenizer

from experiments.demo_model.arithmetic import FULL
from experiments.demo_model.evaluate import OUTPUT_LENGTH, EvaluationScore, HeldOutQuestion
from experiments.demo_model.model import block_config, published_config
from experiments.demo_model.problems import draw_problem
from experiments.demo_model.task_tokenizer import save_task_tokenizer
from experiments.demo_model.tokenizer import save_tokenizer
from services.worker.model.decoder import PackedDecoder
from services.worker.model.weights import load, save

HELD_OUT_FILE = "heldout.jsonl"
HELD_OUT_COUNT = 600
STEPS_FILE = "steps.csv"  # tokens per step and exact match by threshold


def publish(decoder: PackedDecoder, tokenizer: Tokenizer, directory: Path) -> None:
    """Write all files that a worker needs to serve the model, with weights in bfloat16."""
    length, block_length = decoder.config.max_length, decoder.config.block_length
    if block_length:
        config = block_config(tokenizer, block_length)
        save_task_tokenizer(tokenizer, directory, length)
    else:
        config = published_config(tokenizer)
        save_tokenizer(tokenizer, directory, length)
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    save(decoder, directory, torch.bfloat16)


def read_model(directory: Path) -> tuple[PackedDecoder, Tokenizer]:
    """Load a published model for computation in fp32.

    Raises: ValueError if the directory holds no model.
    """
    decoder = load(directory, torch.float32, "cpu")
    return decoder, Tokenizer.from_file(str(directory / "tokenizer.json"))


def held_out_questions(seed: int, count: int = HELD_OUT_COUNT) -> list[HeldOutQuestion]:
    """Draw distinct problems that training never sees; the same seed gives the same problems."""
    rng = Random(f"held out {seed}")
    questions: dict[str, HeldOutQuestion] = {}
    while len(questions) < count:
        problem = draw_problem(FULL, rng, held_out=True)
        questions.setdefault(problem.prompt.lower(), HeldOutQuestion(problem.prompt, str(problem.answer)))
    return list(questions.values())


def write_steps(scores: Sequence[EvaluationScore], path: Path) -> None:
    """Write a STEPS.csv, whose accuracy is the exact match in percent."""
    rows = [f"{s.threshold},{s.tokens_per_step:.4f},{100 * s.exact_match:.2f}" for s in scores]
    path.write_text("\n".join(["threshold,tokens_per_step,accuracy", *rows, ""]), encoding="utf-8")


def write_questions(questions: list[HeldOutQuestion], path: Path) -> None:
    """Write JSON Lines: prompt, answer and output length in tokens."""
    rows = [{"prompt": q.prompt, "answer": q.answer, "output_tokens": OUTPUT_LENGTH} for q in questions]
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
