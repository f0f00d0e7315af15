"""The cost of bounds in JSON schemas: the time to compile a form, and the time per step beside its form without bounds.

python -m experiments.form_steps
"""

import statistics
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from experiments.report import RESULTS, Report
from services.worker.engine.cache_mode import CacheMode
from services.worker.engine.offline_decoder import CaseRequest, DecodeOptions, decode_together
from services.worker.model.families import read_config
from services.worker.model.model_loading import CacheSize, ModelChoice, open_runner
from services.worker.patterns.model_tokens import model_tokens
from services.worker.patterns.pattern_cache import PatternCompiler
from shared.messages.requests import ChatMessage
from shared.patterns.json_schema import schema_part
from shared.patterns.parts import automaton_of
from shared.text import TextModel

MODEL = Path("models/demo-block")
OUTPUT = 256  # tokens
PROMPTS = ("Write an example as JSON.", "Write a long example as JSON.", "List the numbers of the example.")
THRESHOLD = 0.9
PAIRS = 5


def text(**bounds: int) -> dict[str, Any]:
    return {"type": "string", **bounds}


def record(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def strings(number: int, **bounds: int) -> dict[str, Any]:
    return record(**{f"field_{index}": text(**bounds) for index in range(number)})


def integers(**bounds: int) -> dict[str, Any]:
    return {"type": "array", "items": {"type": "integer"}, **bounds}


# Each schema with bounds, and the same without them. Bounds below what the output can reach need counters
SCHEMAS = {
    "four strings of maxLength 255": (strings(4, maxLength=255), strings(4)),
    "a string of maxLength 100,000": (strings(1, maxLength=100_000), strings(1)),
    "an array of maxItems 1,000": (integers(maxItems=1000), integers()),
    "a string of minLength 20, maxLength 200": (strings(1, minLength=20, maxLength=200), strings(1)),
    "an array of minItems 3, maxItems 40": (integers(minItems=3, maxItems=40), integers()),
}


def compiled(schema: Any, patterns: PatternCompiler) -> tuple[str, float]:
    """The pattern of a schema, which `patterns` keeps, and the seconds to compile it in the gateway and the worker."""
    began_s = time.process_time()
    pattern = automaton_of(schema_part(schema)).written()
    patterns.find(pattern)
    return pattern, time.process_time() - began_s


def main(
    pairs: Annotated[int, typer.Option(min=1, help="Times that each schema is measured.")] = PAIRS,
    out: Annotated[Path, typer.Option(help="Directory of the report.")] = RESULTS,
) -> None:
    """Decode each prompt under each schema in turns, and write the report."""
    config, text = read_config(MODEL), TextModel(MODEL, MODEL.name)
    patterns = PatternCompiler(lambda: model_tokens(MODEL, config.vocab_size))
    patterns.find("a")  # reads the vocabulary
    forms = {name: [compiled(schema, patterns) for schema in pair] for name, pair in SCHEMAS.items()}
    prompts = [text.encode_chat([ChatMessage(role="user", content=prompt)]).tolist() for prompt in PROMPTS]
    options = DecodeOptions(CacheMode.BLOCK, THRESHOLD, config.block_length, OUTPUT)
    room = CacheSize(1, max(map(len, prompts)) + OUTPUT + config.block_length)
    report = Report(
        "The cost of bounds in JSON schemas",
        f"{MODEL.name} decodes {len(prompts)} prompts alone, {OUTPUT} tokens each, at threshold {THRESHOLD}: medians "
        f"of {pairs} pairs, CPU time with one thread. To compile: the gateway and the worker together.",
    )
    report.add_columns(
        "schema", "to compile", "without bounds", "per step", "without bounds", "ratio", "without a form"
    )
    with open_runner(ModelChoice(str(MODEL), threads=1), room) as runner:

        def step_ms(pattern: str) -> float:
            requests = [CaseRequest(str(number), prompt, pattern) for number, prompt in enumerate(prompts)]
            began_s = time.process_time()
            steps = [decode_together([each], runner, options, patterns=patterns)[0].nfe for each in requests]
            return 1000 * (time.process_time() - began_s) / sum(steps)

        for name, ((bounded, bounded_s), (plain, plain_s)) in forms.items():
            times = [[step_ms(pattern) for pattern in (bounded, plain, "")] for _ in range(pairs + 1)][1:]
            ratio = statistics.median(with_ms / without_ms for with_ms, without_ms, _ in times)
            shown = [f"{statistics.median(column):.2f} ms" for column in zip(*times, strict=True)]
            report.add_row(name, f"{bounded_s:.2f} s", f"{plain_s:.2f} s", *shown[:2], f"{ratio:.2f}", shown[2])
    report.write(out / "form_steps.md")


if __name__ == "__main__":
    typer.run(main)
