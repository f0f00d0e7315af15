"""Arrival traces."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from shared.errors import BadInput
from simulator.lengths import benchmark_lengths, sharegpt_lengths
from simulator.workload import DAY, constant_rate_trace, read_trace, real_world_trace


def test_the_real_world_trace_has_the_rate_of_its_hours() -> None:
    workload = real_world_trace(sharegpt_lengths(), 20.0, np.random.default_rng(0))
    assert len(workload) == pytest.approx(63_000, rel=0.02)
    per_hour = np.bincount((workload.arrival_s // 300).astype(int), minlength=24) / 300
    assert per_hour.argmax() == 16
    assert per_hour == pytest.approx(20.0 * DAY, rel=0.2)
    assert (np.diff(workload.arrival_s) >= 0).all()


@pytest.mark.parametrize(("name", "samples"), [("gsm8k", 1319), ("mmlu-pro", 12032), ("mbpp", 474)])
def test_benchmarks_have_the_papers_samples(name: str, samples: int) -> None:
    lengths = benchmark_lengths(name)
    assert len(lengths.prompt_tokens) == samples
    assert set(lengths.output_tokens.tolist()) == {256}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (None, "cannot read .*"),
        (
            "prompt_tokens\n5\n",
            r".*: a row lacks a number in prompt_tokens or output_tokens: KeyError\('output_tokens'\)",
        ),
        ("prompt_tokens,output_tokens\n5,x\n", ".*: a row lacks a number in .*'x'"),
        ("prompt_tokens,output_tokens\n5\n", ".*: a row lacks a number in "),
        ("prompt_tokens,output_tokens\n", ".* has no rows"),
    ],
)
def test_missing_or_damaged_lengths_are_refused_by_the_files_name(tmp_path: Path, text: str | None, error: str) -> None:
    path = tmp_path / "sharegpt_lengths.csv.gz"
    if text is not None:
        path.write_bytes(gzip.compress(text.encode()))
    with pytest.raises(BadInput, match=error) as refused:
        sharegpt_lengths(tmp_path)
    assert str(path) in refused.value.message


def test_a_constant_rate_runs_every_sample_the_given_number_of_times() -> None:
    lengths = benchmark_lengths("mbpp")
    workload = constant_rate_trace(lengths, 8.0, np.random.default_rng(0), copies=3)
    assert sorted(workload.prompt_tokens) == sorted(np.tile(lengths.prompt_tokens, 3))
    assert workload.arrival_s[-1] == pytest.approx(len(workload) / 8.0, rel=0.1)


def test_a_trace_is_read_in_order_of_arrival_and_in_whole_blocks(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens,slo_s,key\n2.0,7,40,,alice\n1.5,8,32,3.5,\n")
    workload = read_trace(path)
    assert workload.arrival_s.tolist() == [1.5, 2.0]
    assert (workload.output_tokens.tolist(), workload.key.tolist()) == ([32, 64], ["", "alice"])
    assert workload.slo_s[0] == 3.5
    assert np.isnan(workload.slo_s[1])


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("arrival_s,prompt_tokens\n1,2\n", "output_tokens"),
        ("arrival_s,prompt_tokens,output_tokens\n1,2,x\n", "line 2"),
        ("arrival_s,prompt_tokens,output_tokens\n1,2,3\n-1,2,3\n", "line 3"),
        ("arrival_s,prompt_tokens,output_tokens\n1,2,99999999999999999999\n", "line 2"),
        ("arrival_s,prompt_tokens,output_tokens\n1700000000,2,3\n", "from the start of the trace"),
        ("arrival_s,prompt_tokens,output_tokens,priority\n1,2,3,3000000000\n", "from -100 to 100"),
        (f"arrival_s,prompt_tokens,output_tokens,key\n1,2,3,{'k' * 65}\n", "at most 64 characters"),
        ("arrival_s,prompt_tokens,output_tokens\n", "no requests"),
    ],
)
def test_an_invalid_trace_is_rejected_with_its_fault(tmp_path: Path, text: str, error: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(BadInput, match=error):
        read_trace(path)
