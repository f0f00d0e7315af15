"""Workloads and results of `dilaserve bench`."""

import itertools
import statistics
from pathlib import Path

import pytest

from dilaserve.load.client import LoadReply
from dilaserve.load.summary import summarize
from dilaserve.load.workload import LoadRequest, benchmark_load, poisson_arrivals, read_requests, trace_load
from dilaserve.quality.benchmarks import BenchmarkQuestion
from dilaserve.stack.probes import check_url
from shared.errors import BadInput


def reply(arrival_s: float, latency_s: float = 1.0, **values: object) -> LoadReply:
    served: dict[str, object] = {"slo_met": True, "mean_threshold": 0.9, "output_tokens": 32, "steps": 10}
    return LoadReply(arrival_s, latency_s, **(served | values))  # type: ignore[arg-type]


def test_rows_are_read_and_unknown_fields_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text('{"prompt": "a", "answer": "29", "kind": "x"}\n\n{"prompt": "b", "slo_s": 2}\n')
    assert read_requests(path) == [LoadRequest(prompt="a", answer="29"), LoadRequest(prompt="b", slo_s=2.0)]


def test_files_of_windows_are_read(tmp_path: Path) -> None:
    rows, trace = tmp_path / "requests.jsonl", tmp_path / "trace.csv"
    rows.write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\r\n\r\n{"prompt": "b"}\r\n')
    trace.write_bytes(b"\xef\xbb\xbfarrival_s,prompt_tokens,output_tokens\r\n0,3,32\r\n1.5,4,64\r\n")
    assert [row.prompt for row in read_requests(rows)] == ["a", "b"]
    assert trace_load(trace, 0).arrivals_s == [0.0, 1.5]


@pytest.mark.parametrize("url", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"])
def test_a_gateways_address_may_end_with_v1(url: str) -> None:
    assert check_url("--url", url) == "http://h:1"


@pytest.mark.parametrize("content", ["", "\n", "{}", "[1]", '{"prompt": 3}', "not json"])
def test_an_invalid_request_file_is_rejected_with_its_name(tmp_path: Path, content: str) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text(content)
    with pytest.raises(BadInput, match=r"requests\.jsonl"):
        read_requests(path)
    with pytest.raises(BadInput, match="No such file"):
        read_requests(tmp_path / "absent")


def test_arrivals_are_a_poisson_process_reproducible_by_seed() -> None:
    times = poisson_arrivals(rate_rps=20, duration_s=100, seed=1)
    assert times == poisson_arrivals(rate_rps=20, duration_s=100, seed=1) == sorted(times)
    assert times[-1] < 100
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert statistics.mean(gaps) == pytest.approx(1 / 20, rel=0.1)
    assert statistics.stdev(gaps) == pytest.approx(1 / 20, rel=0.1)


def test_a_failed_request_counts_only_as_a_missed_slo() -> None:
    result = summarize([reply(0.1), LoadReply(0.2, 9.0, error="503"), reply(1.5, 3.0, slo_met=False)], duration_s=2)
    assert (result["requests"], result["completed"], result["failed"]) == (3, 2, 1)
    assert result["slo_attainment"] == pytest.approx(1 / 3)
    assert result["latency_s"]["mean"] == 2.0
    assert result["mean_steps"] == 10
    assert [entry["rps"] for entry in result["timeline"]] == [2, 1]
    assert [entry["slo_attainment"] for entry in result["timeline"]] == [0.5, 0]


def test_throughput_and_goodput_are_rates_until_the_last_reply() -> None:
    replies = [reply(0.0, 1.0, text_tokens=20, first_text_s=0.25), reply(2.0, 2.0, slo_met=False, text_tokens=40)]
    result = summarize(replies, duration_s=2)
    assert (result["requests_per_s"], result["goodput_per_s"], result["text_tokens_per_s"]) == (0.5, 0.25, 15.0)
    assert result["first_text_s"] == {"mean": 0.25, "p50": 0.25, "p90": 0.25, "p99": 0.25}


def test_the_mean_threshold_is_weighted_by_tokens() -> None:
    replies = [reply(0, mean_threshold=0.5, output_tokens=32), reply(0, mean_threshold=0.9, output_tokens=96)]
    assert summarize(replies, duration_s=1)["mean_threshold"] == pytest.approx(0.8)


def test_accuracy_is_reported_only_for_rows_with_an_answer() -> None:
    assert "accuracy" not in summarize([reply(0)], duration_s=1)
    assert summarize([reply(0, correct=True), reply(0, correct=False), reply(0)], duration_s=1)["accuracy"] == 0.5


def test_the_result_of_an_empty_load_has_no_figures() -> None:
    result = summarize([], duration_s=1)
    assert result["slo_attainment"] is None
    assert result["latency_s"]["p99"] is None


def test_a_trace_load_has_the_arrivals_and_lengths_of_the_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens,slo_s,priority\n0.5,3,33,,\n0.2,7,64,2,1\n")
    load = trace_load(path, seed=0)
    assert list(load.arrivals_s) == [0.2, 0.5]
    assert [len(row.prompt_ids or []) for row in load.requests] == [7, 3]
    assert [(row.output_tokens, row.slo_s, row.priority) for row in load.requests] == [(64, 2, 1), (64, None, 0)]
    assert list(load.until(0.4).arrivals_s) == [0.2]


def test_a_benchmark_sends_each_question_once_or_for_the_given_duration() -> None:
    questions = [BenchmarkQuestion(str(number), lambda _text: True) for number in range(300)]
    load = benchmark_load(questions, rate_rps=10, duration_s=None, seed=0)
    assert [load.request(number).prompt for number in range(len(load.arrivals_s))] == [str(i) for i in range(300)]
    assert load.duration_s == pytest.approx(30, rel=0.2)
    assert max(benchmark_load(questions, rate_rps=10, duration_s=60, seed=0).arrivals_s) > 55


def test_the_timeline_shows_the_last_observed_instances() -> None:
    instances = [(0.1, {"1": 2}), (1.2, {"2": 1})]
    timeline = summarize([reply(0), reply(1.5), reply(2.5)], 3, instances)["timeline"]
    assert [entry["instances_per_tp"] for entry in timeline] == [{"1": 2}, {"1": 2}, {"2": 1}]
    assert summarize([reply(0)], 1)["timeline"][0]["instances_per_tp"] == {}
