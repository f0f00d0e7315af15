"""The quality of replies: benchmarks, the judge's client, the limits of a model's program, and `dilaserve verify`."""

import socket
from pathlib import Path

import msgspec
import pytest

from dilaserve.cli import run
from dilaserve.quality import sandbox
from dilaserve.quality.benchmarks import read_benchmark
from dilaserve.quality.judge import Judge
from dilaserve.quality.sandbox import isolation, passes
from dilaserve.stack.up_options import DEMO_MODEL
from shared.errors import BadInput
from tests.support.benchmark_files import write_benchmark_files
from tests.support.judge_server import judge_server
from tests.support.refusal import refusal


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_benchmark_files(tmp_path_factory.mktemp("data"))


def test_gsm8k_prompts_have_five_examples_and_replies_are_graded(data: Path) -> None:
    question = read_benchmark("gsm8k", data)[0]
    assert question.prompt.count("Question: ") == 6
    assert question.prompt.endswith("Question: What is 2 + 0?\nAnswer:")
    assert question.is_correct(" 2 + 0 = 2\n#### 2")
    assert not question.is_correct(" 2 + 0 = 3\n#### 3")


def test_the_examples_are_reproducible(data: Path) -> None:
    prompts = [[question.prompt for question in read_benchmark("gsm8k", data)] for _ in range(2)]
    assert prompts[0] == prompts[1]


def test_mmlu_pro_prompts_list_the_options_and_replies_are_graded(data: Path) -> None:
    question = read_benchmark("mmlu-pro", data)[0]
    assert "about math" in question.prompt
    assert "A. 1\nB. 2\nC. 3\nAnswer: Let's think step by step." in question.prompt
    assert question.is_correct("So the answer is (B).")
    assert not question.is_correct("So the answer is (C).")


def test_mbpp_leaves_out_the_test_part_and_repeats_questions_three_times(data: Path) -> None:
    questions = read_benchmark("mbpp", data)
    assert len(questions) == 3 * 4  # of the ids 1 to 4 and 11, without 11
    assert questions[0].prompt.count("[BEGIN]") == 4
    assert questions[0].prompt.endswith("assert f1(1) == 2\n[BEGIN]\n")
    assert questions[0].is_correct("def f1(x):\n    return x + 1\n[DONE]")
    assert not questions[0].is_correct("def f1(x):\n    return x\n[DONE]")


@pytest.mark.parametrize(("name", "file"), [("gsm8k", "gsm8k_t"), ("mmlu-pro", "mmlu_pro_500"), ("mbpp", "mbpp.jsonl")])
def test_a_missing_file_is_reported(tmp_path: Path, name: str, file: str) -> None:
    with pytest.raises(BadInput, match=f"{tmp_path}.*{file}"):
        read_benchmark(name, tmp_path)


def test_an_invalid_file_is_reported(data: Path, tmp_path: Path) -> None:
    (tmp_path / "mbpp.jsonl.gz").write_bytes((data / "mmlu_pro_500.jsonl.gz").read_bytes())
    with pytest.raises(BadInput, match=r"mbpp\.jsonl\.gz: .*task_id"):
        read_benchmark("mbpp", tmp_path)


GOOD = '{"score": 8, "explanation": "Right."}'


async def test_an_invalid_answer_is_requested_once_more_then_left_unscored() -> None:
    def reply(content: str, times: int) -> str | None:
        if "empty" in content:
            return None
        if "never" in content or ("second" in content and times == 0):
            return "Maybe an 8."
        return GOOD

    with judge_server(reply) as server:
        scores = await Judge(server.url, "strict").scores(
            [("first", "a"), ("second", "b"), ("never", "c"), ("empty", "d")]
        )
    assert scores == [8, 8, None, None]
    assert len(server.bodies) == 1 + 2 + 2 + 2
    assert {body["model"] for body in server.bodies} == {"strict"}
    assert {body["temperature"] for body in server.bodies} == {0}


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
async def test_the_url_works_with_and_without_v1(suffix: str) -> None:
    with judge_server(lambda _content, _times: GOOD) as server:
        judge = Judge(server.url.removesuffix("/v1") + suffix, "any")
        await judge.check()
        assert await judge.scores([("p", "r")]) == [8]


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "no address"])
async def test_a_url_without_a_server_is_rejected(url: str) -> None:
    with pytest.raises(BadInput, match="--judge-url"):
        await Judge(url, "any").check()


async def test_an_unavailable_judge_leaves_replies_unscored() -> None:
    with judge_server(lambda _content, _times: GOOD) as server:
        judge = Judge(server.url, "any")
    assert await judge.scores([("p", "r")]) == [None]


@pytest.mark.parametrize(
    ("program", "tests", "passed"),
    [
        ("def f(x):\n    return x + 1", "assert f(1) == 2", True),
        ("import math, re, collections, heapq", "assert math.sqrt(4) == 2", True),
        ("print('x' * 10**7)", "", True),
        ("def f(x):\n    return x", "assert f(1) == 2", False),
        ("def f(x) return", "", False),
        ("import sys; sys.exit(0)", "assert False", False),
        ("import os; os._exit(0)", "assert False", False),
        ("x = bytearray(1 << 30)", "", False),  # more memory than it may have
    ],
)
def test_only_a_program_that_completes_its_tests_passes(program: str, tests: str, passed: bool) -> None:
    assert passes(program, tests) == passed


def test_a_program_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "CPU_S", 1)
    assert not passes("while True: pass", "")


def test_a_program_has_no_network() -> None:
    if not isolation().no_network:
        pytest.skip("this system permits no network namespace")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert not passes(f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 5)", "")


ROWS = str(DEMO_MODEL / "heldout.jsonl")


@pytest.mark.slow
def test_the_demo_model_has_its_published_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = ["--model", str(DEMO_MODEL), "--data", ROWS, "--questions", "8"]
    arguments = ["verify", *data, "--batch", "8", "--dtype", "float32"]
    assert run([*arguments, "--out", str(tmp_path / "figures.json"), "--json"]) == 0
    report = msgspec.json.decode((tmp_path / "figures.json").read_bytes())
    assert report == msgspec.json.decode(capsys.readouterr().out)
    assert (report["model"], report["benchmark"], report["differences"]) == ("demo", "rows", [])
    assert report["published"]["accuracy"] == 0.937
    assert report["own"]["questions"] == 8


@pytest.mark.parametrize(
    ("rows", "error"),
    [('{"prompt": "What is 1 + 1?"}\n', "each row needs an answer"), ("", "is empty"), ("{", "row 1")],
)
def test_unusable_questions_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rows: str, error: str
) -> None:
    (tmp_path / "rows.jsonl").write_text(rows)
    assert error in refusal(capsys, "verify", "--model", DEMO_MODEL, "--data", tmp_path / "rows.jsonl")


def test_a_model_of_another_architecture_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 4096}')
    error = refusal(capsys, "verify", "--model", tmp_path, "--data", ROWS)
    assert "architecture: LlamaForCausalLM; supported: LLaDAModelLM, DreamModel" in error
