"""Random JSON schemas, served under a schema-valid constraint: how many compile, how many are served, how many valid.

python -m experiments.random_schemas

The schemas are those of experiments/data/random_schemas.jsonl, which hypothesis-jsonschema drew from the draft-07
meta-schema before the first run. Each one that compiles and has an instance of at most OUTPUT tokens is sent to two
instances of the block-causal demo model, without a form, with it, and with it under faults: clients that disconnect, a
killed worker, one that stops and so moves its requests.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Annotated, Any

import httpx
import jsonschema_rs
import psutil
import typer

from experiments.live_cluster import live_cluster
from experiments.report import RESULTS, Report, target_list
from services.worker.patterns.model_tokens import model_tokens
from services.worker.patterns.token_automaton import UNREACHABLE, TokenTable, tokenize
from shared.errors import BadInput
from shared.patterns.json_schema import schema_part
from shared.patterns.part_automaton import automaton_of

SCHEMAS = Path(__file__).parent / "data/random_schemas.jsonl"
MODEL = Path("models/demo-block")
OUTPUT = 512  # tokens
CONCURRENCY = 16
CANCELLED = 0.1  # share of the clients that disconnect, under faults
MIN_COMPILED, MIN_SERVED = 300, 0.9
PROMPT = "Write an example as JSON."
TIMEOUT_S = 300.0


@dataclass(slots=True)
class Served:
    """The ends of the requests of one row."""

    ends: Counter[str] = field(default_factory=Counter)
    valid: int = 0
    migrations: int = 0
    invalid: list[str] = field(default_factory=list)

    @property
    def served(self) -> int:
        return self.ends["served"]


def compiled_schemas(schemas: Sequence[Any], tokens: TokenTable) -> tuple[list[Any], Counter[str]]:
    """Those that compile and have an instance of at most OUTPUT tokens, and the reasons of the others."""
    found, refused = [], Counter[str]()
    for schema in schemas:
        try:
            shortest = int(tokenize(automaton_of(schema_part(schema)), tokens).tokens_left[0])
        except BadInput as error:
            refused[_kind(error.message)] += 1
            continue
        if shortest == UNREACHABLE or shortest > OUTPUT:
            refused[f"no instance of at most {OUTPUT} tokens"] += 1
        else:
            found.append(schema)
    return found, refused


def _kind(message: str) -> str:
    """A message without the values in it."""
    words = message.replace("schema ", "").split()
    return " ".join(word for word in words if not any(sign in word for sign in "0123456789'\"{["))[:80]


async def serve(url: str, schemas: Sequence[Any], *, with_form: bool, faults: bool) -> Served:
    """Send a request for each schema, CONCURRENCY at a time."""
    found, free, random, sent = Served(), asyncio.Semaphore(CONCURRENCY), Random(0), 0

    async def ask(client: httpx.AsyncClient, schema: Any, patience_s: float) -> None:
        nonlocal sent
        body: dict[str, Any] = {"model": MODEL.name, "messages": [{"role": "user", "content": PROMPT}]}
        body |= {"max_tokens": OUTPUT, "slo_ms": 60_000}
        if with_form:
            body["response_format"] = {"type": "json_schema", "json_schema": {"name": "random", "schema": schema}}
        async with free:
            sent += 1
            if faults and sent in {len(schemas) // 3, 2 * len(schemas) // 3}:
                _end_worker(kill=sent == len(schemas) // 3)
            try:
                reply = await asyncio.wait_for(client.post("/v1/chat/completions", json=body), patience_s)
            except TimeoutError:
                found.ends["client left"] += 1
                return
        _count(found, schema, reply)

    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, trust_env=False) as client:
        patience = [random.random() if faults and random.random() < CANCELLED else TIMEOUT_S for _ in schemas]
        await asyncio.gather(*(ask(client, *pair) for pair in zip(schemas, patience, strict=True)))
    return found


def _count(found: Served, schema: Any, reply: httpx.Response) -> None:
    if reply.status_code != httpx.codes.OK:
        found.ends[f"{reply.status_code}: {_kind(reply.json()['error']['message'])}"] += 1
        return
    found.ends["served"] += 1
    found.migrations += reply.json()["dilaserve"]["migrations"]
    text = reply.json()["choices"][0]["message"]["content"]
    if _is_instance(text, schema):
        found.valid += 1
    else:
        found.invalid.append(f"{json.dumps(schema)}: {text}")


def _is_instance(text: str, schema: Any) -> bool:
    try:
        return jsonschema_rs.Draft7Validator(schema).is_valid(json.loads(text))
    except ValueError:
        return False


def _end_worker(*, kill: bool) -> None:
    """Kill one worker of the cluster, or stop it, which moves its requests."""
    children = psutil.Process().children(recursive=True)
    worker = next(child for child in children if "services.worker" in child.cmdline())
    worker.kill() if kill else worker.terminate()


def main(
    limit: Annotated[int, typer.Option(help="Only the first schemas; 0: all.")] = 0,
    out: Annotated[Path, typer.Option(help="Directory of the report.")] = RESULTS,
) -> None:
    """Compile, serve, and write the report."""
    schemas = [json.loads(line) for line in SCHEMAS.read_text().splitlines()][: limit or None]
    started_s = time.process_time()
    vocabulary = json.loads((MODEL / "config.json").read_text())["vocab_size"]
    compiled, refused = compiled_schemas(schemas, model_tokens(MODEL, vocabulary))
    compile_s = (time.process_time() - started_s) / len(schemas)
    rows: dict[str, tuple[bool, bool]] = {
        "without a form": (False, False),
        "JSON schema": (True, False),
        "JSON schema, with faults": (True, True),
    }
    with live_cluster("--model", MODEL, "--slots", 2, "--instances", "2x1") as live:
        found = {
            name: asyncio.run(serve(live.url, compiled, with_form=form, faults=faults))
            for name, (form, faults) in rows.items()
        }
    report = Report(
        "Random JSON schemas",
        f"{len(schemas)} schemas that hypothesis-jsonschema drew from JSON Schema's draft-07 meta-schema. "
        f"{len(compiled)} compile and have an instance of at most {OUTPUT} tokens ({1000 * compile_s:.0f} ms "
        f"of CPU time each). Each of these is asked of the block-causal demo model on two instances, {CONCURRENCY} at "
        f"a time, with at most {OUTPUT} tokens. Faults: a tenth of the clients leave within a second, a worker is "
        "killed, and one is stopped.",
    )
    report.add_columns("requests", "served", "valid", "migrations", "other ends")
    for name, each in found.items():
        others = ", ".join(f"{end}: {n}" for end, n in sorted(each.ends.items()) if end != "served")
        report.add_row(name, each.served, each.valid, each.migrations, others or "none")
    report.add("Schemas that are refused:", *(f"- {n}: {reason}" for reason, n in refused.most_common()))
    report.add("Targets:", target_list(targets(len(compiled), found)))
    for name, each in found.items():
        if each.invalid and name != "without a form":
            report.add(f"Invalid, {name}:", *(f"- {text}" for text in each.invalid[:10]))
    report.write(out / "random_schemas.md")


def targets(compiled: int, found: Mapping[str, Served]) -> dict[str, bool]:
    """Each target, and whether it is reached."""
    reached = {f"{compiled} schemas compile, at least {MIN_COMPILED}": compiled >= MIN_COMPILED}
    for name, each in found.items():
        if name == "without a form":
            continue
        share = each.served / max(compiled - each.ends["client left"], 1)
        reached[f"{name}: {share:.1%} served, at least {MIN_SERVED:.0%}"] = share >= MIN_SERVED
        reached[f"{name}: every served text is valid"] = each.valid == each.served
    return reached


if __name__ == "__main__":
    typer.run(main)
