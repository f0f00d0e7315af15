"""`dilaserve bench` against the whole system: loads of each kind, graded and judged."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.benchmark_files import write_benchmark_files
from tests.support.judge_server import judge_server
from tests.support.stack import Stack, dilaserve

SLO_S = 120
ROWS = ("--requests", "models/demo/heldout.jsonl")


def bench(stack: Stack, *options: object) -> dict[str, Any]:
    done = dilaserve("bench", "--url", stack.url, "--slo", SLO_S, "--json", *options)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_a_trace_is_sent_at_its_times_with_its_lengths(stack: Stack, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens,slo_s,priority\n0,20,32,,\n1.2,40,64,0.001,5\n")
    out, plot = tmp_path / "result.json", tmp_path / "timeline.png"
    result = bench(stack, "--trace", trace, "--out", out, "--plot", plot)
    assert (result["requests"], result["completed"]) == (2, 2)
    assert result["slo_attainment"] == 0.5  # the second asks for the impossible
    assert [entry["rps"] for entry in result["timeline"]] == [1, 1]
    assert result["timeline"][0]["instances_per_tp"] == {"1": 2}
    assert json.loads(out.read_bytes()) == result
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_a_benchmark_asks_each_question_once_and_grades_the_reply(stack: Stack, tmp_path: Path) -> None:
    result = bench(stack, "--benchmark", "mmlu-pro", "--data", write_benchmark_files(tmp_path), "--rate", 10)
    assert (result["requests"], result["completed"]) == (1, 1)
    assert result["accuracy"] in (0, 1)
    assert "judge" not in result


def test_a_judge_scores_replies_is_asked_again_and_what_it_does_not_score_is_counted(
    stack: Stack, tmp_path: Path
) -> None:
    def reply(content: str, times: int) -> str:
        if "What is 2 + 0?" in content or ("What is 2 + 1?" in content and times == 0):
            return "I would say 7 out of 10."
        return '{"score": 8, "explanation": "Right."}'

    with judge_server(reply) as judge:
        options = ("--judge-url", judge.url, "--judge-model", "strict")
        result = bench(stack, "--benchmark", "gsm8k", "--data", write_benchmark_files(tmp_path), "--rate", 10, *options)
    assert result["completed"] == 4
    assert 0 <= result["accuracy"] <= 1
    assert result["judge"] == {"model": "strict", "mean_score": 8, "scored": 3, "unscored": 1}
    assert len(judge.bodies) == 4 + 2
    assert all("### ASSISTANT ANSWER:" in body["messages"][0]["content"] for body in judge.bodies)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "one of --requests"),
        (("--benchmark", "gsm8k", "--trace", "x.csv"), "one of --requests"),
        (("--benchmark", "gsm8k", "--data", "/nowhere"), "/nowhere"),
        (("--benchmark", "humaneval"), "mmlu-pro"),
        (("--trace", "/nowhere.csv"), "/nowhere.csv"),
        (("--benchmark", "gsm8k", "--judge-url", "http://127.0.0.1:1"), "--judge-model"),
        (("--plot", "plot.pdf"), ".png or .html"),
        ((*ROWS, "--judge-url", "http://127.0.0.1:1", "--judge-model", "x"), "no server answers"),
    ],
)
def test_wrong_input_is_one_line_and_status_2(options: tuple[str, ...], said: str) -> None:
    done = dilaserve("bench", *options)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert said in done.stderr
