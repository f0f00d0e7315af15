"""The benefit of the prefix cache: time to first text of requests with a common prefix, with and without the cache.

python -m experiments.prefix_cache

Two clusters, one with the cache and one without, serve the same requests, one cluster at a time. Each has one instance
with one thread. A common prompt: after one request, 64 others with the same system message, 8 at a time. Chats with
this system message: each turn sends the whole conversation so far. Each round has texts of its own.

The experiment measures two thresholds. The targets apply to the first one: the fastest with at least 85 % exact match
in experiments.block_demo. With the second, higher one, more steps run before the first text, and the cache does not
shorten those. The clients are threads with the standard library's HTTP client. They share the cores with the clusters,
so a client that used more CPU time would delay the replies.
"""

import json
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path
from random import Random
from typing import Annotated, Any

import typer

from dilaserve.load.workload import LoadRequest
from experiments.held_out import held_out
from experiments.live_cluster import LiveCluster, one_instance
from experiments.report import RESULTS, Report, target_list
from services.worker.cache.prefix_pages import PAGE_TOKENS
from shared.messages.requests import ChatMessage, Request
from shared.text import TextModel

PAGE = PAGE_TOKENS
COMMON_TOKENS, REQUESTS, CONCURRENCY = 256, 64, 8
CHATS, TURNS = 8, 10
OUTPUT = 32  # tokens of an answer
TARGET_THRESHOLD = 0.6  # the fastest with 85 % exact match, by experiments.block_demo
HIGH_THRESHOLD = 0.9
FIRST_SEED = 100  # seeds from here on were not used while the cache was developed
WORKLOADS = ("common prompt", "chats of ten turns")
MAX_RATIO, MIN_HIT_RATE = 0.6, 0.95

Messages = list[dict[str, str]]


@dataclass(slots=True)
class PrefixUse:
    """Of the requests of one cluster: seconds to the first text, and tokens."""

    first_text_s: list[float] = field(default_factory=list)
    cached_tokens: int = 0
    cacheable_tokens: int = 0

    @property
    def hit_rate(self) -> float:
        return self.cached_tokens / self.cacheable_tokens


@contextmanager
def cluster(model: Path, threshold: float, share: float) -> Iterator[LiveCluster]:
    """One instance with a fixed threshold, whose prefix cache has this share of the KV cache."""
    os.environ["DILASERVE_PREFIX_CACHE"] = str(share)
    with one_instance("--model", model, "--policy", "fixed", "--thresholds", threshold) as live:
        yield live


def common_tokens(text: TextModel, conversations: Sequence[Messages]) -> int:
    """The tokens with which all these prompts begin."""
    prompts = [text.encode_request(request_of(messages)).tolist() for messages in conversations]
    return next(i for i, column in enumerate(zip(*prompts, strict=False)) if len(set(column)) > 1)


def request_of(messages: Messages) -> Request:
    return Request(request_id="a", messages=[ChatMessage(**message) for message in messages])


def system_message(text: TextModel, problems: Iterable[LoadRequest]) -> dict[str, str]:
    """A system message of worked problems, with which prompts of at least COMMON_TOKENS tokens begin."""
    content, each = "", iter(problems)
    ends: list[Messages] = [[{"role": "user", "content": end}] for end in ("1", "2")]
    while common_tokens(text, [[{"role": "system", "content": content}, *end] for end in ends]) < COMMON_TOKENS:
        problem = next(each)
        content += f"{problem.prompt} The answer is {problem.answer}. "
    return {"role": "system", "content": content}


def stream(server: HTTPConnection, model: str, messages: Messages) -> tuple[float, Mapping[str, Any], str]:
    """Returns: the seconds to the first text, the usage, and the text."""
    body = {"model": model, "messages": messages, "max_tokens": OUTPUT, "stream": True, "slo_ms": 60_000}
    started_s, first_s, content, usage = time.perf_counter(), 0.0, "", dict[str, Any]()
    options = {"stream_options": {"include_usage": True}}
    server.request("POST", "/v1/chat/completions", json.dumps(body | options), {"Content-Type": "application/json"})
    reply = server.getresponse()
    if reply.status != HTTPStatus.OK:
        raise RuntimeError(reply.read().decode())
    for line in reply:
        if not line.startswith(b"data: {"):
            continue
        chunk = json.loads(line[6:])
        usage = chunk.get("usage") or usage
        piece = chunk["choices"][0]["delta"].get("content") if chunk["choices"] else ""
        if piece and not first_s:
            first_s = time.perf_counter() - started_s
        content += piece or ""
    return first_s or time.perf_counter() - started_s, usage, content


def run_common(
    address: str, text: TextModel, system: dict[str, str], questions: Sequence[LoadRequest], cacheable: int
) -> PrefixUse:
    """One request, then all others."""
    measured, waiting = PrefixUse(), iter(questions)

    def ask_next(server: HTTPConnection) -> None:
        for question in waiting:
            messages = [system, {"role": "user", "content": question.prompt}]
            first_s, usage, _ = stream(server, text.card.name, messages)
            measured.first_text_s.append(first_s)
            measured.cached_tokens += usage["prompt_tokens_details"]["cached_tokens"]
            measured.cacheable_tokens += cacheable

    with closing(HTTPConnection(address)) as server:
        stream(server, text.card.name, [system, {"role": "user", "content": "2 + 3 = ?"}])
    together(address, [ask_next] * CONCURRENCY)
    return measured


def run_chats(address: str, text: TextModel, system: dict[str, str], questions: Sequence[LoadRequest]) -> PrefixUse:
    """CHATS chats of TURNS questions each, together. Counts all turns but the first."""
    measured = PrefixUse()

    def chat(number: int, server: HTTPConnection) -> None:
        messages: Messages = [system]
        for turn, question in enumerate(questions[number * TURNS :][:TURNS]):
            before = messages.copy()
            messages.append({"role": "user", "content": question.prompt})
            first_s, usage, answer = stream(server, text.card.name, messages)
            if turn:
                measured.first_text_s.append(first_s)
                measured.cached_tokens += usage["prompt_tokens_details"]["cached_tokens"]
                measured.cacheable_tokens += common_tokens(text, [before, messages]) // PAGE * PAGE
            messages.append({"role": "assistant", "content": answer})

    together(address, [partial(chat, number) for number in range(CHATS)])
    return measured


def together(address: str, clients: Sequence[Callable[[HTTPConnection], None]]) -> None:
    """Run each client in a thread and with a connection of its own."""

    def run(client: Callable[[HTTPConnection], None]) -> None:
        with closing(HTTPConnection(address)) as server:
            client(server)

    with ThreadPoolExecutor(len(clients)) as threads:
        list(threads.map(run, clients))


def run_rounds(
    clusters: Mapping[str, LiveCluster], text: TextModel, problems: Sequence[LoadRequest], rounds: int
) -> dict[tuple[str, str], list[PrefixUse]]:
    """By workload and cluster, in turns."""
    results: dict[tuple[str, str], list[PrefixUse]] = {}
    for number in range(rounds):
        drawn = Random(FIRST_SEED + number).sample(problems, len(problems))
        common = system_message(text, drawn[REQUESTS:])
        two: list[Messages] = [[common, {"role": "user", "content": each.prompt}] for each in drawn[:2]]
        cacheable = common_tokens(text, two) // PAGE * PAGE
        for name in sorted(clusters, reverse=bool(number % 2)):
            address = clusters[name].url.removeprefix("http://")
            measured = run_common(address, text, common, drawn[:REQUESTS], cacheable)
            results.setdefault(("common prompt", name), []).append(measured)
            measured = run_chats(address, text, common, drawn)
            results.setdefault(("chats of ten turns", name), []).append(measured)
    return results


def main(
    model: Annotated[Path, typer.Option(help="A block-causal model.")] = Path("models/demo-block"),
    rounds: Annotated[int, typer.Option(min=1, help="Rounds, after one that warms up.")] = 11,
    out: Annotated[Path, typer.Option(help="Directory of the report.")] = RESULTS,
) -> None:
    """Measure both workloads on both clusters, and write the report."""
    text, problems = TextModel(model, model.name), held_out(model)
    report = Report(
        "The prefix cache",
        f"Block-causal demo model, one thread, cache of pages of {PAGE} tokens. Common prompt: {REQUESTS} requests, "
        f"{CONCURRENCY} at a time, whose first {COMMON_TOKENS} tokens or more are the same, after one such request. "
        f"Chats with such a system message, {CHATS} at a time: turns 2 to {TURNS}. "
        f"Medians of {rounds} rounds, which take turns on two clusters, "
        "of each round's median time to first text. Hit rate: tokens cached, of those of whole pages in common. "
        f"Threshold {TARGET_THRESHOLD} is the fastest with 85 % exact match (experiments.block_demo).",
    )
    report.add_columns(
        "workload", "threshold", "time to first text with, ms", "without, ms", "ratio (spread)", "hit rate"
    )
    targets = {}
    for threshold in (TARGET_THRESHOLD, HIGH_THRESHOLD):
        with cluster(model, threshold, 0.25) as cached, cluster(model, threshold, 0.0) as plain:
            results = run_rounds({"with": cached, "without": plain}, text, problems, rounds + 1)
        for workload in WORKLOADS:
            kept = {name: results[workload, name][1:] for name in ("with", "without")}
            medians = {name: [statistics.median(each.first_text_s) for each in of] for name, of in kept.items()}
            ratios = sorted(a / b for a, b in zip(medians["with"], medians["without"], strict=True))
            ratio, hits = statistics.median(ratios), min(each.hit_rate for each in kept["with"])
            times = [f"{1000 * statistics.median(medians[name]):.1f}" for name in ("with", "without")]
            spread = f"{ratio:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
            report.add_row(workload, str(threshold), *times, spread, f"{hits:.1%}")
            if threshold == TARGET_THRESHOLD:
                targets[f"{workload}: ratio {ratio:.2f}, at most {MAX_RATIO}"] = ratio <= MAX_RATIO
                lowest = f"lowest hit rate of a round {hits:.1%}, at least {MIN_HIT_RATE:.0%}"
                targets[f"{workload}: {lowest}"] = hits >= MIN_HIT_RATE
    report.add(f"Targets, at threshold {TARGET_THRESHOLD}:", target_list(targets))
    report.write(out / "prefix_cache.md")


if __name__ == "__main__":
    typer.run(main)
