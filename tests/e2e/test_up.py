"""`dilaserve up` from a client's side: every service, a real bus and a database; with HTTPS and servers of others."""

import asyncio
import json
import re
import signal
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest
from nats.aio.msg import Msg

from dilaserve.stack.data_dir import read_addresses
from dilaserve.stack.probes import nats_answers, postgres_answers
from dilaserve.stack.up_options import DEMO_MODEL
from experiments.faults.accounts import received_outcomes
from experiments.faults.load import closed_loop, send
from experiments.live_cluster import SUBJECTS, held_out_requests, subscribed
from shared.bus.client import last_token
from shared.bus.codec import decode
from shared.bus.users import BusUser
from shared.messages.stats import SchedulerStats
from tests.support.benchmark_files import write_benchmark_files
from tests.support.certificates import make_certificate
from tests.support.judge_server import judge_server
from tests.support.nats import NatsServer
from tests.support.postgres import PostgresServer
from tests.support.services import ROOT
from tests.support.stack import Stack, dilaserve, new_data_dir, running_stack
from tests.support.waiting import reached

CLIENTS, PROMPTS = 4, 10
LIMIT_S = 60.0
# With one threshold and no cache, a request's text is independent of time, instance and other requests. A given profile
# spares the measurement.
PROFILE = ROOT / "experiments/data/transition-profile.csv"
OPTIONS = ("--instances", "2x1", "--gateways", "2", "--thresholds", "0.9", "--cache", "none", "--profile", PROFILE)


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """Two instances of the demo model and two gateways, for all tests. The last one stops them."""
    with new_data_dir() as data_dir, running_stack(DEMO_MODEL, data_dir, *OPTIONS) as running:
        yield running


def test_an_openai_client_gets_the_right_number_of_apples(stack: Stack) -> None:
    messages: Any = [{"role": "user", "content": "A shop has 5 apples and buys 7 more. How many apples are there?"}]
    with openai.OpenAI(base_url=f"{stack.url}/v1", api_key="any", timeout=60) as client:
        reply = client.chat.completions.create(model=DEMO_MODEL.name, messages=messages, max_tokens=64)
    assert "The answer is 12." in str(reply.choices[0].message.content)
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage is not None
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    served = reply.model_extra["dilaserve"] if reply.model_extra else {}
    assert served["steps"] >= served["recompute_steps"] >= 1
    assert served["mean_threshold"] == pytest.approx(0.9)


async def test_a_request_is_served_by_one_of_the_two_instances(stack: Stack) -> None:
    served = stack.complete("how many apples?").json()["dilaserve"]
    await reached(lambda: len(stack.instances()) == 2, LIMIT_S)
    status = json.loads(dilaserve("status", "--json", "--data-dir", stack.data_dir).stdout)
    assert {instance["instance_id"] for instance in status["instances"]} == stack.instances()
    assert set(served["instances"]) <= stack.instances()


def test_a_form_concerns_the_whole_text_of_a_template(stack: Stack) -> None:
    form = r"Step 1: [0-9]+[-+*/][0-9]+=[0-9]+\. Step 2: [0-9]+[-+*/][0-9]+=[0-9]+\. The answer is 21\."
    prompt = "<|user|>John has 54 flowers.<|assistant|>"
    body = {"prompt": prompt, "template": "Step 1: <mask:5>. Step 2: <mask:5>. The answer is 21."}
    filled, refused = [
        httpx.post(f"{stack.url}/v1/completions", json=body | {"guided_regex": regex}, timeout=LIMIT_S)
        for regex in (form, "The answer is .*")
    ]
    assert re.fullmatch(form, filled.json()["choices"][0]["text"])
    assert refused.status_code == 400
    assert "does not match the pattern" in refused.json()["error"]["message"]


def bench(stack: Stack, *options: object) -> dict[str, Any]:
    """The result of `dilaserve bench`."""
    done = dilaserve("bench", "--url", stack.url, "--slo", 120, "--json", *options)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_bench_sends_each_question_once_and_grades_the_reply(stack: Stack, tmp_path: Path) -> None:
    result = bench(stack, "--benchmark", "mmlu-pro", "--data", write_benchmark_files(tmp_path), "--rate", 10)
    assert (result["requests"], result["completed"]) == (1, 1)
    assert result["accuracy"] in (0, 1)
    assert "judge" not in result


@pytest.mark.slow
def test_bench_replays_a_trace_with_its_times_and_lengths(stack: Stack, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens,slo_s,priority\n0,20,32,,\n1.2,40,64,0.001,5\n")
    out, plot = tmp_path / "result.json", tmp_path / "timeline.png"
    result = bench(stack, "--trace", trace, "--out", out, "--plot", plot)
    assert (result["requests"], result["completed"]) == (2, 2)
    assert result["slo_attainment"] == 0.5  # the second has an SLO of 1 ms
    assert result["requests_per_s"] == pytest.approx(2 * result["goodput_per_s"])
    assert [entry["rps"] for entry in result["timeline"]] == [1, 1]
    assert result["timeline"][0]["instances_per_tp"] == {"1": 2}
    assert json.loads(out.read_bytes()) == result
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow  # waits between its attempts
def test_bench_retries_the_judge_and_counts_unscored_replies(stack: Stack, tmp_path: Path) -> None:
    def reply(content: str, times: int) -> str:
        if "What is 2 + 0?" in content or ("What is 2 + 1?" in content and times == 0):
            return "I would give 7 out of 10."
        return '{"score": 8, "explanation": "Right."}'

    with judge_server(reply) as judge:
        options = ("--judge-url", judge.url, "--judge-model", "strict")
        data = write_benchmark_files(tmp_path)
        result = bench(stack, "--benchmark", "gsm8k", "--data", data, "--rate", 10, *options)
    assert result["completed"] == 4
    assert 0 <= result["accuracy"] <= 1
    assert result["judge"] == {"model": "strict", "mean_score": 8, "scored": 3, "unscored": 1}
    assert len(judge.bodies) == 4 + 2
    assert all("### ASSISTANT ANSWER:" in body["messages"][0]["content"] for body in judge.bodies)


@pytest.mark.slow
async def test_100_concurrent_requests_get_the_same_texts_as_alone(stack: Stack) -> None:
    prompts = [row.prompt for row in held_out_requests()[:100]]
    limits = httpx.Limits(max_connections=100)
    async with httpx.AsyncClient(base_url=stack.url, timeout=110, limits=limits) as http:
        together = await asyncio.gather(*(send(http, prompt) for prompt in prompts))
        assert None not in {each.text for each in together}
        for each in together[::8]:
            assert (await send(http, each.prompt)).text == each.text


@pytest.mark.parametrize("server", ["nats-server", "postgres"])
async def test_serving_continues_after_a_killed_server(stack: Stack, server: str) -> None:
    killed = stack.program(server)
    killed.kill()
    await reached(lambda: any(program.pid != killed.pid for program in stack.programs(server)), LIMIT_S)
    await reached(lambda: stack.complete("how many plums?").status_code == 200, LIMIT_S)
    await reached(lambda: len(stack.instances()) == 2, LIMIT_S)


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_killed_services_lose_and_repeat_nothing_and_checkpoints_are_resumed(stack: Stack) -> None:
    prompts = [row.prompt for row in held_out_requests()[:PROMPTS]]
    nats_url = read_addresses(stack.data_dir).nats_urls[BusUser.OPERATOR]
    checkpoints, stats = set[str](), list[SchedulerStats]()

    def on_stats(msg: Msg) -> None:
        stats.append(decode(msg.data, SchedulerStats))

    handlers = {
        SUBJECTS.checkpoints("*"): lambda msg: checkpoints.add(last_token(msg.subject)),
        SUBJECTS.stats("scheduler"): on_stats,
    }
    async with (
        received_outcomes(nats_url) as received,
        subscribed(nats_url, handlers),
        httpx.AsyncClient(base_url=stack.url, timeout=LIMIT_S) as http,
        closed_loop(http, prompts, CLIENTS) as answers,
    ):
        for victim in ("predictor", "worker", "scheduler"):
            # at least two requests are between blocks
            await reached(lambda: bool(stats) and len(checkpoints - received.keys()) > 1, LIMIT_S)
            served, before = len(answers), len(stats)
            stack.program(f"services.{victim}").kill()
            await reached(lambda: len(answers) > served + CLIENTS + 10 and works(victim, stats, before), LIMIT_S)  # noqa: B023
    assert [answer.errors for answer in answers] == [[]] * len(answers)
    assert len({(answer.prompt, answer.text) for answer in answers}) == PROMPTS
    outcomes = [received[answer.request_id] for answer in answers]
    assert {len(of_request) for of_request in outcomes} == {1}
    assert any(outcome.decisions and outcome.decisions.first_step for [outcome] in outcomes)


def works(service: str, stats: list[SchedulerStats], before: int) -> bool:
    """Whether a service works again that was killed after the first `before` of the scheduler's stats."""
    last, since = stats[before - 1], stats[before:]
    if not since:
        return False
    match service:
        case "scheduler":
            return since[-1].epoch > last.epoch
        case "predictor":
            failing = [each for each in since if each.predictor_fallbacks > last.predictor_fallbacks]
            return bool(failing) and failing[-1].predictions > failing[0].predictions
        case _:
            old, new = ({each.instance_id for each in of.instances} for of in (last, since[-1]))
            return len(new) == len(old) and new != old


@pytest.mark.slow
async def test_no_request_fails_while_gateways_are_replaced(stack: Stack) -> None:
    """Half of the clients keep their connection, half open one for each request."""
    prompts, first = [row.prompt for row in held_out_requests()[:PROMPTS]], stack.programs("services.gateway")
    async with (
        httpx.AsyncClient(base_url=stack.url, timeout=LIMIT_S) as keeping,
        httpx.AsyncClient(base_url=stack.url, timeout=LIMIT_S, headers={"Connection": "close"}) as closing,
        closed_loop(keeping, prompts, CLIENTS) as answers,
        closed_loop(closing, prompts, CLIENTS) as others,
    ):

        async def further() -> None:
            wanted = len(answers) + CLIENTS, len(others) + CLIENTS
            await reached(lambda: len(answers) >= wanted[0] and len(others) >= wanted[1], LIMIT_S)

        for gateway in first:
            await further()
            gateway.send_signal(signal.SIGTERM)
            await asyncio.to_thread(psutil.wait_procs, [gateway], LIMIT_S)
            await further()
            await reached(lambda: len(stack.programs("services.gateway")) == 2, LIMIT_S)
    assert len(first) == 2
    assert not {gateway.pid for gateway in first} & {gateway.pid for gateway in stack.programs("services.gateway")}
    assert [answer.errors for answer in answers + others if answer.errors or answer.text is None] == []


@pytest.mark.slow
def test_a_taken_port_and_a_used_directory_are_one_line_errors(stack: Stack, tmp_path: Path) -> None:
    model = ("--model", DEMO_MODEL)
    taken = dilaserve("up", *model, "--data-dir", tmp_path / "data", "--port", stack.port)
    assert (taken.returncode, taken.stdout) == (2, "")
    assert taken.stderr.endswith("the port is taken; choose another with --port\n")
    assert taken.stderr.count("\n") == 1
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["lock"]

    used = dilaserve("up", *model, "--data-dir", stack.data_dir, "--port", stack.port)
    assert (used.returncode, used.stdout, used.stderr.count("\n")) == (2, "", 1)
    assert f"in use by another `dilaserve up` (process {stack.process.pid})" in used.stderr


@pytest.mark.slow
def test_it_drains_leaves_no_process_and_a_copy_of_its_data_works(stack: Stack) -> None:
    """The last test of the stack, because it stops it."""
    request_id = stack.complete("how many plums?").json()["dilaserve"]["request_id"]
    assert dilaserve("keys", "create", "alice", "--data-dir", stack.data_dir).returncode == 0
    children = stack.children()
    assert stack.stop() == 0
    assert not psutil.wait_procs(children, timeout=LIMIT_S)[1]
    copy = stack.data_dir.with_name("a copy + é%41")
    subprocess.run(["cp", "--archive", stack.data_dir, copy], check=True)
    with running_stack(DEMO_MODEL, copy, "--instances", "1x1", "--profile", PROFILE, "--slo", "9") as second:
        assert json.loads(dilaserve("cell-config", "--json", "--data-dir", copy).stdout)["default_slo_s"] == 9
        assert httpx.get(f"{second.url}/v1/requests/{request_id}").status_code == 200
        keys = json.loads(dilaserve("keys", "list", "--json", "--data-dir", copy).stdout)["keys"]
        assert [key["name"] for key in keys] == ["alice"]
        assert second.stop() == 0


@pytest.mark.slow
async def test_an_https_stack_serves_until_a_second_interrupt_which_spares_other_servers(
    tiny_checkpoint_dir: Path, tmp_path: Path, nats_server: NatsServer, postgres_server: PostgresServer
) -> None:
    made = make_certificate(tmp_path / "tls")
    trusted = ssl.create_default_context(cafile=made.certificate)
    files = ("--tls-certificate", made.certificate, "--tls-key", made.key)
    servers = ("--nats-url", nats_server.url, "--database-url", postgres_server.url)
    with (
        new_data_dir() as data_dir,
        running_stack(tiny_checkpoint_dir, data_dir, "--instances", "1x1", *files, *servers) as stack,
    ):
        body = {"model": "tiny-llada", "prompt": "how many apples?", "max_tokens": 32, "slo_ms": 60_000}
        url = f"https://localhost:{stack.port}/v1/completions"
        reply = await asyncio.to_thread(httpx.post, url, json=body, verify=trusted, timeout=60)
        assert reply.status_code == 200, reply.text
        status = json.loads(dilaserve("status", "--json", "--data-dir", data_dir).stdout)
        assert (status["ready"], status["url"]) == (True, f"https://127.0.0.1:{stack.port}")
        findings = json.loads(dilaserve("doctor", "--json", "--data-dir", data_dir).stdout)["findings"]
        assert [finding["ok"] for finding in findings if finding["subject"] == "gateway"] == [True]

        children = stack.children()
        assert {child.name() for child in children}.isdisjoint({"nats-server", "postgres"})
        stack.process.send_signal(signal.SIGINT)
        await reached(lambda: b"interrupt again to kill" in stack.log.read_bytes(), LIMIT_S)
        stack.process.send_signal(signal.SIGINT)
        assert stack.process.wait(timeout=LIMIT_S) == 1
        assert not psutil.wait_procs(children, timeout=LIMIT_S)[1]
    assert await nats_answers(nats_server.url)
    assert await postgres_answers(postgres_server.url)
