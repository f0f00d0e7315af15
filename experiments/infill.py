"""Infill with the demo model: the last sentence of the answer is given, and the model fills in the steps before it.

python -m experiments.infill

A reply is right if every equation of its steps is, and the last one results in the given answer. Beside it, the same
checker judges the steps of the same prompt without a given sentence, whose answer the model has to find. A second
column also asks that every number before an equals sign is one of the problem or an earlier result.

A hole has a fixed number of tokens, which a client has to choose: one number for all problems, or the number that the
steps of the free reply have. All requests run through the gateway at a fixed threshold, so no text depends on the load.
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
from experiments.demo_model.words import NUMBER_NAMES
from experiments.live_cluster import held_out_requests, one_instance
from experiments.report import RESULTS, Report
from experiments.standard_errors import percent

THRESHOLD, OUTPUT = 0.9, 64
HOLES = (8, 12, 16, 20, 24, 28, 32)  # tokens
AT_ONCE, LIMIT_S = 16, 600.0
EQUATION = re.compile(r"(\d+) ?([-+*/]) ?(\d+) ?= ?(\d+)")
# Words of the problems that are numbers, and their parts.
WORDS = {name: str(number) for number, name in enumerate(NUMBER_NAMES)} | {"half": "2", "halve": "2", "third": "3"}
WORDS |= {"quarter": "4", "twice": "2", "double": "2", "triple": "3"}
SENTENCE = " The answer is {}."


@dataclass(frozen=True, slots=True)
class InfillReply:
    """The steps that the model wrote."""

    text: str
    tokens: int
    steps: int  # denoising steps


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


def uses_numbers_of(problem: str, text: str) -> bool:
    """Whether the equations start from the numbers of the problem and from earlier results."""
    known = {*re.findall(r"\d+", problem)} | {number for word, number in WORDS.items() if word in problem.lower()}
    for left, _, right, result in EQUATION.findall(text):
        if not {left, right} <= known:
            return False
        known.add(result)
    return True


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
                return InfillReply(text, tokens, reply["dilaserve"]["steps"])

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
    report = Report(
        "Infill",
        f"The demo model, {len(rows)} held-out problems, threshold {THRESHOLD}, cache dual, float32. Right: every "
        "equation is right, and the last one results in the answer. Standard errors over the problems.",
    )
    report.add_columns(
        *("given", "tokens of the hole", "right, %", "and of the problem's numbers, %", "mean denoising steps"),
        "mean tokens of the text",
    )

    def add(given: str, hole: object, replies: Sequence[InfillReply]) -> None:
        right = [right_steps(reply.text, answer) for reply, answer in zip(replies, answers, strict=True)]
        own = [uses_numbers_of(row.prompt, reply.text) for row, reply in zip(rows, replies, strict=True)]
        report.add_row(
            given,
            hole,
            percent([float(each) for each in right]),
            percent([float(both) for both in map(all, zip(right, own, strict=True))]),
            f"{statistics.mean(reply.steps for reply in replies):.1f}",
            f"{statistics.mean(reply.tokens for reply in replies):.1f}",
        )

    add("nothing", "-", free)
    for hole, replies in of_hole.items():
        add("the last sentence", hole, replies)
    add("the last sentence", "as the free reply", of_free_length)
    report.write(out / "infill.md")


if __name__ == "__main__":
    typer.run(main)
