"""The study of the policies: when a row wins, its bound, and its report."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.policies.bound import most_in_time
from experiments.policies.points import POINTS
from experiments.policies.rows import SYSTEMS
from experiments.policies.runs import Figures, Run
from experiments.policies.store import RunStore
from experiments.policies.study import by_point
from experiments.policies.tables import write
from experiments.policies.verdicts import Means, means, wins


def score(attainment: float, accuracy: float) -> Means:
    figures = Figures(
        requests=10, attainment=attainment, accuracy=accuracy, accuracy_met=accuracy, attainment_longest=90.0,
        attainment_per_class={"5": attainment}, mean_s=5.0, p99_s=9.0, slo_s=5.0, steps=100, cpu_s=1.0,
    )  # fmt: skip
    return means([figures])


@pytest.mark.parametrize(
    ("attainment", "accuracy", "expected"),
    [
        (99.2, 77.0, True),  # better in one, equal in the other
        (99.2, 76.95, True),  # less than the tolerance worse
        (99.2, 76.8, False),
        (99.05, 77.05, False),  # better in both, by less than the tolerance
        (98.95, 78.0, True),
        (98.0, 79.0, False),
        (99.0, 77.0, False),
    ],
)
def test_a_constant_wins_only_if_it_gives_nothing_away(attainment: float, accuracy: float, expected: bool) -> None:
    assert wins(score(attainment, accuracy), score(99.0, 77.0)) is expected


@pytest.mark.parametrize(
    ("due_s", "work_s", "instances", "most"),
    [
        ([10, 10, 10], [4, 4, 2], 1, 3),  # all fit
        ([10, 10, 10], [8, 8, 2], 1, 2),  # the small one, and one of the others
        ([10, 10, 10], [8, 8, 2], 2, 3),
        ([4, 10, 10], [8, 4, 4], 1, 2.25),  # a quarter of the first, whose slots end before it
        ([10, 10, 10], [20, 20, 20], 1, 0.5),  # fractions count
    ],
)
def test_the_bound_takes_what_most_requests_need(
    due_s: list[float], work_s: list[float], instances: int, most: float
) -> None:
    arrival_s = np.zeros(3)
    assert most_in_time(arrival_s, np.array(due_s), np.array(work_s), instances) == pytest.approx(most)


@given(st.integers(0, 10_000))
def test_the_bound_is_at_least_what_a_first_come_first_served_queue_reaches(seed: int) -> None:
    random = np.random.default_rng(seed)
    arrival_s, work_s = np.sort(random.uniform(0, 20, 12)), random.uniform(0.1, 4, 12)
    due_s, free_s, in_time = arrival_s + random.uniform(2, 12, 12), 0.0, 0
    for arrived, due, work in zip(arrival_s, due_s, work_s, strict=True):
        ends = max(free_s, arrived) + work
        if ends <= due:
            free_s, in_time = ends, in_time + 1
    assert most_in_time(arrival_s, due_s, work_s, 1) >= in_time - 1e-6


def test_the_report_holds_the_rows_with_all_seeds(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs" / "policies.csv")
    point = replace(POINTS["gsm8k-16"], requests=8)
    small = [Run(point, SYSTEMS[row], 0) for row in ("infaas-0.7", "infaas-0.8")]
    for run in small:
        store.add(run, run.simulate())
    incomplete = [replace(run, seed=seed) for run in small for seed in (0, 1)]
    assert by_point(incomplete, store) == {}
    found = by_point(small, store)
    assert list(found["gsm8k-16"]) == ["infaas-0.7", "infaas-0.8"]
    write(found, [0], tmp_path)
    report = (tmp_path / "policies.md").read_text()
    assert "8 requests" in report
    assert (tmp_path / "policies.png").read_bytes().startswith(b"\x89PNG")
