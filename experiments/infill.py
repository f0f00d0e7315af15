"""Infill with the demo model: the last sentence of the answer is given, and the model fills in the steps before it.

python -m experiments.infill

A reply is right if every equation of its steps is, and the last one results in the given answer. Beside it, the same
checker judges the steps of the same prompt without a given sentence, whose answer the model has to find.

A hole has a fixed number of tokens, which a client has to choose. The rows differ in that choice: one number for all
problems; of several numbers, the one whose text has the highest mean log-probability; and the number that the steps of
the free reply have. All requests run through the gateway at a fixed threshold, so no text depends on the load.
"""

import asyncio
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer

from dilaserve.load.workload import LoadRequest
from experiments.live_cluster import held_out_requests, one_instance
from experiments.report import RESULTS, Report, target_list
from experiments.standard_errors import percent

THRESHOLD, OUTPUT = 0.9, 64
HOLES = (12, 16, 20, 24, 28, 32, 36)  # tokens
AT_ONCE, LIMIT_S = 16, 600.0
EQUATION = re.compile(r"(\d+) ?([-+*/]) ?(\d+) ?= ?(\d+)")
SENTENCE = " The answer is {}."


@dataclass(frozen=True, slots=True)
class InfillReply:
    """The steps that the model wrote."""

    text: str
    tokens: int
    steps: int  # denoising steps
    mean_logprob: float


def right_steps(text: str, answer: str) -> bool:
    """Whether the text has an equation, all of them are right, and the last one results in the answer."""
    equations = EQUATION.findall(text)
    return bool(equations) and equations[-1][3] == answer and all(_is_right(*equation) for equation in equations)


def _is_right(left: str, sign: str, right: str, result: str) -> bool:
    a, b, c = int(left), int(right), int(result)
    match sign:
        case "+":
            return a + b == c
        case "-":
            return a - b == c
        case "*":
            return a * b == c
        case _:
            return b * c == a and b > 0


def steps_of(reply: Mapping[str, Any]) -> str:
    """The text of a completion before its last sentence."""
    return str(reply["choices"][0]["text"]).partition(SENTENCE[:-3])[0]


class InfillClient:
    """Sends completions for problems, AT_ONCE at a time."""

    def __init__(self, url: str) -> None:
        self._url = url

    def ask(self, bodies: Sequence[Mapping[str, object]]) -> list[InfillReply]:
        """The replies, in order. Raises: httpx.HTTPStatusError for an error."""
        return asyncio.run(self._ask(bodies))

    async def _ask(self, bodies: Sequence[Mapping[str, object]]) -> list[InfillReply]:
        free = asyncio.Semaphore(AT_ONCE)
        async with httpx.AsyncClient(base_url=self._url, timeout=LIMIT_S, trust_env=False) as http:

            async def ask_one(body: Mapping[str, object]) -> InfillReply:
                async with free:
                    fields = {"model": "demo", "logprobs": 0, "slo_ms": 1000 * LIMIT_S, **body}
                    reply = (await http.post("/v1/completions", json=fields)).raise_for_status().json()
                logprobs = reply["choices"][0]["logprobs"]
                text = steps_of(reply)
                tokens = sum(offset < len(text) for offset in logprobs["text_offset"])
                mean = statistics.mean(logprobs["token_logprobs"] or [0.0])
                return InfillReply(text, tokens, reply["dilaserve"]["steps"], mean)

            return await asyncio.gather(*map(ask_one, bodies))


def prompt_of(row: LoadRequest) -> str:
    return f"<|user|>{row.prompt}<|assistant|>"


def main(
    problems: Annotated[int, typer.Option(min=2, help="Held-out problems.")] = 300,
    out: Annotated[Path, typer.Option(help="Directory of the report.")] = RESULTS,
) -> None:
    """Measure, and write the report."""
    rows = held_out_requests()[:problems]
    answers = [row.answer or "" for row in rows]
    prompts = [prompt_of(row) for row in rows]
    ends = [SENTENCE.format(answer) for answer in answers]

    def with_holes(client: InfillClient, holes: Sequence[int]) -> list[InfillReply]:
        return client.ask(
            [
                {"prompt": prompt, "suffix": end, "max_tokens": hole}
                for prompt, end, hole in zip(prompts, ends, holes, strict=True)
            ]
        )

    with one_instance("--policy", "fixed", "--thresholds", THRESHOLD) as cluster:
        client = InfillClient(cluster.url)
        free = client.ask([{"prompt": prompt, "max_tokens": OUTPUT} for prompt in prompts])
        of_hole = {hole: with_holes(client, [hole] * len(rows)) for hole in HOLES}
        of_free_length = with_holes(client, [max(reply.tokens, 1) for reply in free])
    surest = [max(each, key=lambda reply: reply.mean_logprob) for each in zip(*of_hole.values(), strict=True)]
    report = Report(
        "Infill",
        f"The demo model, {len(rows)} held-out problems, threshold {THRESHOLD}, cache dual, float32. Right: every "
        "equation is right, and the last one results in the answer. The requests of a row run together. Standard "
        "errors over the problems.",
    )
    report.add_columns("given", "tokens of the hole", "right, %", "mean steps", "mean tokens of the steps")

    def add(given: str, hole: object, replies: Sequence[InfillReply], steps: float | None = None) -> float:
        right = [float(right_steps(reply.text, answer)) for reply, answer in zip(replies, answers, strict=True)]
        mean_steps = statistics.mean(reply.steps for reply in replies) if steps is None else steps
        tokens = statistics.mean(reply.tokens for reply in replies)
        report.add_row(given, hole, percent(right), f"{mean_steps:.1f}", f"{tokens:.1f}")
        return statistics.mean(right)

    sentence = "the last sentence"
    unpinned = add("nothing", "-", free)
    for hole, replies in of_hole.items():
        add(sentence, hole, replies)
    all_steps = sum(statistics.mean(reply.steps for reply in replies) for replies in of_hole.values())
    chosen = add(sentence, f"the surest of {len(HOLES)}", surest, all_steps)
    add(sentence, "as the free reply", of_free_length)
    name = f"the surest hole is right at least as often as the free reply: {100 * chosen:.1f} %, {100 * unpinned:.1f} %"
    report.add("Target:", target_list({name: chosen >= unpinned}))
    report.write(out / "infill.md")


if __name__ == "__main__":
    typer.run(main)
