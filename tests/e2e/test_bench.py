"""`dilaserve bench` against the whole system: loads of each kind, graded and judged."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.benchmark_files import write_benchmark_files
from tests.support.judge_server import judge_server
from tests.support.stack import Stack, dilaserve

SLO_S = 120


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


@pytest.mark.parametrize(("name", "requests"), [("gsm8k", 4), ("mmlu-pro", 1)])
def test_a_benchmark_asks_each_question_once_and_grades_the_replies(
    stack: Stack, tmp_path: Path, name: str, requests: int
) -> None:
    data = write_benchmark_files(tmp_path)
    result = bench(stack, "--benchmark", name, "--data", data, "--rate", 10)
    assert (result["requests"], result["completed"]) == (requests, requests)
    assert 0 <= result["accuracy"] <= 1


def test_a_judge_scores_replies_is_asked_again_and_what_it_does_not_score_is_counted(
    stack: Stack, tmp_path: Path
) -> None:
    rows = tmp_path / "rows.jsonl"
    prompts = ["2 + 3 = ?", "7 + 1 = ?", "4 + 4 = ?"]
    rows.write_text("".join(json.dumps({"prompt": prompt, "output_tokens": 32}) + "\n" for prompt in prompts))

    def reply(content: str, times: int) -> str:
        assert "### ASSISTANT ANSWER:" in content
        if prompts[0] in content or (prompts[1] in content and times == 0):
            return "I would say 7 out of 10."
        return '{"score": 8, "explanation": "Right."}'

    with judge_server(reply) as judge:
        options = ("--judge-url", judge.url, "--judge-model", "strict")
        result = bench(stack, "--requests", rows, "--rate", 100, "--duration", 0.04, "--seed", 2, *options)
    asked = result["completed"]
    assert asked >= 3
    unscored = (asked + 2) // 3  # the rows come in turn
    assert result["judge"] == {"model": "strict", "mean_score": 8, "scored": asked - unscored, "unscored": unscored}
    assert {body["model"] for body in judge.bodies} == {"strict"}


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
    ],
)
def test_wrong_input_is_one_line_and_status_2(options: tuple[str, ...], said: str) -> None:
    done = dilaserve("bench", *options)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert said in done.stderr
