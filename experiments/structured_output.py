"""Structured output in the worker's engine: quality, steps and time beside free text, and the cost of compiling.

python -m experiments.structured_output

Both demo models answer held-out problems with the regular expression of their usual answer, and the block-causal one
also tasks that ask for JSON, with the schema of the wanted answer; each beside the same prompts without a form. Runs
with and without it take turns. The last table compiles patterns for a vocabulary of 150,000 tokens, which are made of
the demo model's.
"""

import json
import statistics
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Annotated, Any

import typer

from experiments.demo_model.evaluate import is_right, read_questions, text_length
from experiments.demo_model.evaluate_tasks import held_out_tasks, is_right_reply
from experiments.demo_model.publish import HELD_OUT_FILE
from experiments.demo_model.tasks import TaskKind
from experiments.engine_throughput import read_prompts
from experiments.report import RESULTS, Report, target_list
from services.worker.cache.cache_mode import CacheMode
from services.worker.engine.offline_decoder import CaseRequest, DecodeOptions, decode_together
from services.worker.model.model_loading import CacheSize, ModelChoice, open_runner
from services.worker.model.model_runner import ModelRunner
from services.worker.patterns.model_tokens import model_tokens
from services.worker.patterns.pattern_cache import PatternCompiler
from services.worker.patterns.token_automaton import TokenTable, tokenize
from shared.patterns.automaton import compile_pattern
from shared.patterns.json_schema import object_pattern, schema_pattern
from shared.text import TextModel

MODELS = (Path("models/demo"), Path("models/demo-block"))
ANSWER_FORM = r"[^\n]*The answer is -?[0-9]+\."
THRESHOLD, OUTPUT = 0.9, 64
BATCHES = (1, 16)
VOCABULARY = 150_000
MAX_ADDED = 0.10  # median added time of a step


@dataclass(frozen=True, slots=True)
class FormTask:
    """Prompts with the pattern of each answer, and whether a reply is right."""

    name: str
    prompts: Sequence[list[int]]
    patterns: Sequence[str]
    is_right: Callable[[int, str], bool]


@dataclass(frozen=True, slots=True)
class FormScore:
    exact_match: float
    matching: float  # share of the texts that match their pattern
    steps: float  # of a request
    step_ms: float  # CPU time of a request's steps, by their number


@dataclass(frozen=True, slots=True)
class ModelUnderTest:
    directory: Path
    runner: ModelRunner
    text: TextModel
    patterns: PatternCompiler

    def measure(self, task: FormTask, batch: int, *, with_form: bool) -> FormScore:
        """Decode all prompts, `batch` at a time."""
        config = self.runner.config
        mode = CacheMode.BLOCK if config.is_block_causal else CacheMode.DUAL
        options = DecodeOptions(mode, THRESHOLD, config.block_length or 32, OUTPUT, stop_at_eos=True)
        requests = [
            CaseRequest(str(i), prompt, pattern if with_form else "")
            for i, (prompt, pattern) in enumerate(zip(task.prompts, task.patterns, strict=True))
        ]
        started_s = time.process_time()
        traces = []
        for at in range(0, len(requests), batch):
            traces += decode_together(requests[at : at + batch], self.runner, options, patterns=self.patterns)
        took_s = time.process_time() - started_s
        ids = [trace.output_ids[: text_length(trace.output_ids, config.eos_token_id)] for trace in traces]
        replies = [self.text.decode(own) for own in ids]
        steps = sum(trace.nfe for trace in traces)
        return FormScore(
            exact_match=statistics.mean(task.is_right(i, reply) for i, reply in enumerate(replies)),
            matching=statistics.mean(
                matches(pattern, reply) for pattern, reply in zip(task.patterns, replies, strict=True)
            ),
            steps=steps / len(traces),
            step_ms=1000 * took_s / steps,
        )


def matches(pattern: str, text: str) -> bool:
    automaton, state = compile_pattern(pattern), 0
    for byte in text.encode():
        state = int(automaton.next_state[state, byte])
        if state < 0:
            return False
    return bool(automaton.accepting[state])


def answer_task(directory: Path, problems: int) -> FormTask:
    """Problems whose answer is a sentence at the end."""
    answers = [question.answer for question in read_questions(directory / HELD_OUT_FILE)][:problems]
    prompts = read_prompts(directory, len(answers))
    return FormTask("regex of the answer", prompts, [ANSWER_FORM] * len(answers), lambda i, t: is_right(t, answers[i]))


def json_task(text: TextModel, problems: int) -> FormTask:
    """Tasks that ask for JSON, with the schema of their answer."""
    tasks = held_out_tasks(TaskKind.JSON, 0, problems)
    prompts = [text.encode_prompt(task.prompt).tolist() for task in tasks]
    patterns = [schema_pattern(schema_of(json.loads(task.reply))) for task in tasks]
    return FormTask("JSON schema", prompts, patterns, lambda i, reply: is_right_reply(tasks[i], reply))


def schema_of(value: Any) -> dict[str, Any]:
    """The schema of values like this one."""
    if isinstance(value, dict):
        return {"type": "object", "properties": {k: schema_of(v) for k, v in value.items()}, "required": list(value)}
    if isinstance(value, list):
        return {"type": "array", "items": {"type": "string"}}
    return {"type": "string" if isinstance(value, str) else "integer"}


def compile_costs(report: Report, table: TokenTable) -> None:
    """Add the table of compile times."""
    person = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 40},
            "born": {"type": "string", "format": "date"},
            "tags": {"type": "array", "items": {"enum": ["new", "old", "paid"]}, "maxItems": 5},
        },
        "required": ["name", "born", "tags"],
    }
    for name, pattern in (
        ("answer sentence", ANSWER_FORM),
        ("choice of two", "(?:yes|no)"),
        ("schema with three properties", schema_pattern(person)),
        ("any JSON object", object_pattern()),
        ("string of at most 500 characters", schema_pattern({"type": "string", "maxLength": 500})),
    ):
        started_s = time.perf_counter()
        automaton = compile_pattern(pattern)
        compiled_s = time.perf_counter()
        tracemalloc.start()
        tokenized = tokenize(automaton, table)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        kept = tokenized.next_state.nbytes + tokenized.class_of.nbytes
        started_tokens_s = time.perf_counter()
        tokenize(automaton, table)  # again, without the tracing of memory
        tokens_s = time.perf_counter() - started_tokens_s
        shape = tokenized.next_state.shape
        report.add_row(
            name, *shape, f"{compiled_s - started_s:.2f}", f"{tokens_s:.2f}", f"{kept / 1e6:.1f}", f"{peak / 1e6:.0f}"
        )


def large_vocabulary(table: TokenTable) -> TokenTable:
    """Tokens of one or two of the model's, up to VOCABULARY."""
    random, words = Random(0), set(table.texts)
    pieces = list(table.texts)
    while len(words) < VOCABULARY:
        words.add((random.choice(pieces) + random.choice(pieces))[:16])
    return TokenTable.of([b"", b"", *sorted(words)], [1], VOCABULARY + 2)


def main(
    problems: Annotated[int, typer.Option(min=1, help="Held-out problems of each task.")] = 200,
    pairs: Annotated[int, typer.Option(min=1, help="Interleaved pairs of runs.")] = 5,
    out: Annotated[Path, typer.Option(help="Directory of the report.")] = RESULTS,
) -> None:
    """Measure, and write the report."""
    report = Report(
        "Structured output",
        f"Held-out problems, threshold {THRESHOLD}, output {OUTPUT}, float32, one thread, {problems} problems a row, "
        f"medians of {pairs} interleaved pairs. Matching: texts of the form. Added: CPU time of a step.",
    )
    report.add_columns(
        *("model", "form", "requests at once", "exact match without, %", "with, %", "matching without, %", "with, %"),
        *("steps without", "with", "added (spread), %"),
    )
    targets: dict[str, bool] = {}
    size = CacheSize(max(BATCHES), max(BATCHES) * 1024)
    for directory in MODELS:
        with open_runner(ModelChoice(str(directory), dtype="float32", threads=1), size) as runner:
            text = TextModel(directory, directory.name)
            table = model_tokens(directory, runner.config.vocab_size)
            model = ModelUnderTest(
                directory, runner, text, PatternCompiler(partial(model_tokens, directory, runner.config.vocab_size))
            )
            tasks = [answer_task(directory, problems)]
            if runner.config.is_block_causal:
                tasks.append(json_task(text, problems))
            for task in tasks:
                for batch in BATCHES:
                    add_task(report, targets, model, task, batch, pairs)
    report.add("Targets:", target_list(targets), f"Compiling for a vocabulary of {VOCABULARY:,} tokens:")
    costs = Report("Compiling patterns")
    costs.add_columns(
        "pattern", "states", "classes of tokens", "bytes, s", "tokens, s", "kept, MB", "at most while compiling, MB"
    )
    compile_costs(costs, large_vocabulary(table))
    report.write(out / "structured_output.md")
    costs.write(out / "structured_output.md", append=True)


def add_task(
    report: Report, targets: dict[str, bool], model: ModelUnderTest, task: FormTask, batch: int, pairs: int
) -> None:
    """Add one row and its targets."""
    first = replace(task, prompts=task.prompts[:16], patterns=task.patterns[:16])
    for with_form in (True, False):
        model.measure(first, batch, with_form=with_form)  # warm up, and compile
    runs = [[model.measure(task, batch, with_form=with_form) for with_form in (False, True)] for _ in range(pairs)]
    free, formed = runs[0]
    added = sorted(100 * (b.step_ms / a.step_ms - 1) for a, b in runs)
    median = statistics.median(added)
    report.add_row(
        model.directory.name,
        task.name,
        batch,
        *(f"{100 * share:.1f}" for share in (free.exact_match, formed.exact_match, free.matching, formed.matching)),
        f"{free.steps:.1f}",
        f"{formed.steps:.1f}",
        f"{median:+.1f} ({added[0]:+.1f} to {added[-1]:+.1f})",
    )
    name = f"{model.directory.name}, {task.name}, {batch} at once"
    targets[f"{name}: exact match not lower with the form"] = formed.exact_match >= free.exact_match
    targets[f"{name}: every text matches"] = formed.matching == 1.0
    targets[f"{name}: median added time {median:.1f} %, below {MAX_ADDED:.0%}"] = median < 100 * MAX_ADDED


if __name__ == "__main__":
    typer.run(main)
