"""The study of the policies: its rules, its load points, and its stored runs."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.policies.arrivals import FLOOD_KEY, OTHER_KEYS, with_flood
from experiments.policies.bound import most_in_time
from experiments.policies.points import POINTS, POLICY, Target, recompute_intercept_s
from experiments.policies.rows import ONE_SHOT, SYSTEMS
from experiments.policies.runs import Figures, Run
from experiments.policies.store import RunStore
from experiments.policies.study import by_point, selected
from experiments.policies.tables import write
from experiments.policies.verdicts import Means, means, missed, robustness, wins
from shared.errors import BadInput
from simulator.workload import make_trace


def figures(attainment: float = 99.0, accuracy: float = 77.0, **given: object) -> Figures:
    fields = {
        "requests": 10, "accuracy_met": accuracy, "attainment_longest": 90.0, "attainment_per_class": {"5": attainment},
        "mean_s": 5.0, "p99_s": 9.0, "slo_s": 5.0, "steps": 100, "cpu_s": 1.0,
    }  # fmt: skip
    return Figures(attainment=attainment, accuracy=accuracy, **{**fields, **given})  # type: ignore[arg-type]


def score(attainment: float, accuracy: float, **given: object) -> Means:
    return means([figures(attainment, accuracy, **given)])


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


def test_each_missed_part_of_a_target_is_named() -> None:
    policy = score(99.0, 77.0, attainment_per_class={"6.6": 97.5, "39.6": 100.0}, mean_s=5.7)
    assert missed(Target(99.0, 77.0), policy) == []
    found = missed(Target(99.5, 76.0, attainment_per_class=98.0, mean_s=5.6), policy)
    assert found == ["attainment by 0.50", "attainment at SLO 6.6 s by 0.50", "mean latency by 0.10"]


def test_a_wrong_profile_and_one_shot_estimates_may_cost_a_stated_part() -> None:
    scores = {
        "gsm8k-16": {POLICY: score(99.0, 77.0), ONE_SHOT: score(95.9, 77.0)},
        "gsm8k-16-profile-slow": {POLICY: score(99.0, 76.4)},
        "gsm8k-16-profile-fast": {POLICY: score(98.6, 77.2)},
        "gsm8k-19-profile-fast": {POLICY: score(1.0, 1.0)},  # without the right profile's run
    }
    assert {name.split(":")[0]: reached for name, reached in robustness(scores).items()} == {
        f"gsm8k-16, {ONE_SHOT}": False,
        "gsm8k-16-profile-slow": False,
        "gsm8k-16-profile-fast": True,
    }


@pytest.mark.parametrize(("attainment", "reached"), [(56.0, True), (54.0, False)])
def test_an_overload_has_a_target_by_the_fluid_bound(attainment: float, reached: bool) -> None:
    assert list(robustness({"overload-40": {POLICY: score(attainment, 66.6, bound=69.0)}}).values()) == [reached]


@pytest.mark.parametrize(("others", "reached"), [((99.2, 78.2), True), ((98.5, 78.5), False), ((99.5, 77.8), False)])
def test_a_flood_of_one_key_may_cost_the_others_a_stated_part(others: tuple[float, float], reached: bool) -> None:
    attainment, accuracy = ({"other keys": value, FLOOD_KEY: 20.0} for value in others)
    flooded = score(40.0, 70.0, attainment_per_class=attainment, accuracy_per_class=accuracy)
    scores = {"key-flood": {POLICY: flooded}, "key-flood-absent": {POLICY: score(100.0, 78.5)}}
    assert list(robustness(scores).values()) == [reached]


@pytest.mark.parametrize(
    ("point", "requests", "rps"),
    [
        ("gsm8k-16", 1319, 4.0),
        ("mmlu-pro-23", 3000, 5.75),
        ("mbpp-18", 1422, 4.5),
        ("roofline-44", 2638, 11.0),
        ("mooncake-20", 14_380, 4.13),
        ("step-2-20", 3_150, 3.5),
    ],
)
def test_points_have_the_stated_requests_at_a_quarter_of_the_rate(point: str, requests: int, rps: float) -> None:
    workload = POINTS[point].arrivals(0)
    assert len(workload) == pytest.approx(requests, rel=0.04)
    assert len(workload) / workload.arrival_s[-1] == pytest.approx(rps, rel=0.06)


@pytest.mark.parametrize("rps", [0.0, 4.0])
def test_a_flood_leaves_the_requests_of_the_other_keys_as_they_are(rps: float) -> None:
    workload = make_trace(np.arange(100.0), np.arange(100), np.full(100, 32))
    flooded = with_flood(workload, rps, np.random.default_rng(0))
    others = flooded.key != FLOOD_KEY
    assert flooded.prompt_tokens[others].tolist() == list(range(100))
    assert set(flooded.key[others]) == set(OTHER_KEYS)
    assert np.count_nonzero(~others) == rps * 99


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


def test_the_shared_launch_of_the_main_profile_is_near_its_recompute_intercept() -> None:
    merged = POINTS["gsm8k-16-merged"]
    assert recompute_intercept_s(merged.profile()) == pytest.approx(merged.shared_launch_s(), abs=0.002)
    assert POINTS["gsm8k-16"].shared_launch_s() == 0


def test_names_are_selected_by_patterns() -> None:
    assert selected(SYSTEMS, "infaas-0.9,paper*") == ["paper-margin-0", "paper-margin-1", "infaas-0.9"]
    with pytest.raises(BadInput, match="'typo' matches none"):
        selected(SYSTEMS, "infaas-0.9,typo")


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(tmp_path / "runs" / "policies.csv")


@pytest.fixture
def small() -> list[Run]:
    """Two short runs."""
    point = replace(POINTS["gsm8k-16"], requests=8)
    return [Run(point, SYSTEMS[row], 0) for row in ("infaas-0.7", "infaas-0.8")]


@pytest.mark.parametrize("accuracy_met", [None, 77.25])
def test_a_new_store_on_the_same_file_has_the_runs(
    small: list[Run], store: RunStore, tmp_path: Path, accuracy_met: float | None
) -> None:
    per_class = {"6.6": 98.5, "39.6": 100.0}
    written = figures(
        99.1234, accuracy_met=accuracy_met, attainment_per_class=per_class, accuracy_per_class=per_class, bound=99.5
    )
    store.add(small[1], figures())
    store.add(small[0], written)
    read = RunStore(tmp_path / "runs" / "policies.csv")
    assert [read.get(run) for run in small] == [written, figures()]
    assert read.get(replace(small[0], seed=1)) is None


def test_figures_of_an_earlier_study_lack_the_later_columns(small: list[Run], store: RunStore, tmp_path: Path) -> None:
    store.add(small[0], figures())
    path = tmp_path / "runs" / "policies.csv"
    path.write_text("\n".join(line.rsplit(",", 2)[0] for line in path.read_text().splitlines()))
    assert RunStore(path).get(small[0]) == figures()


def test_the_report_holds_the_rows_with_all_seeds(small: list[Run], store: RunStore, tmp_path: Path) -> None:
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


def test_a_wrong_profile_is_registered_and_the_right_one_simulated() -> None:
    point = POINTS["gsm8k-16-profile-slow"]
    scenario = Run(point, SYSTEMS[POLICY], 0).scenario(make_trace(np.zeros(1), np.array([100]), np.array([64])))
    assert scenario.registered is not None
    for (tp, kind), curve in scenario.profile.curves.items():
        assert scenario.registered.curves[tp, kind].latency_s == pytest.approx(2 * curve.latency_s)
