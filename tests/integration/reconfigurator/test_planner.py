"""Both stages together, and the command that runs them."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from dilaserve.cli import run
from services.reconfigurator.planning.plan import Capacity, Placement, Plan, PlanStatus
from services.reconfigurator.planning.plan_input import PlanInput, Workload
from services.reconfigurator.planning.planner import make_plan
from services.reconfigurator.planning.stage1_capacity import find_capacity
from shared.profile import write_profile
from tests.support.refusal import refusal
from tests.support.small_plans import small_input
from tests.support.workloads import PROFILE, a_class, workload


def made(load: Workload, current: list[Placement] | None = None, *, cached: bool = True, **options: Any) -> Plan:
    return make_plan(PlanInput(load, PROFILE, cached=cached), current or [], **options)


def placements(plan: Plan) -> list[Placement]:
    return [Placement(node=i.node, gpus=i.gpus, tp=i.tp) for i in plan.instances]


def test_an_easy_workload_gets_the_highest_threshold_and_the_fastest_instances() -> None:
    plan = made(workload(classes=[a_class(rps=0.1)]))
    assert plan.status is PlanStatus.OPTIMAL
    assert plan.mean_threshold == pytest.approx(0.9, rel=1e-6)
    assert plan.instances_per_tp == {4: 2}
    [chat] = plan.classes
    assert chat.steps_by_threshold == pytest.approx({"0.9": 128}, rel=1e-5)
    assert chat.steps_by_tp == pytest.approx({"4": 128}, rel=1e-5)


def test_latency_and_slack_are_in_seconds() -> None:
    """128 recompute steps of 0.4 x 21.6 ms."""
    plan = made(workload(classes=[a_class(rps=0.1)]), cached=False)
    assert plan.classes[0].latency_s == pytest.approx(128 * 0.4 * 0.0216, rel=1e-5)
    assert plan.slack_s == pytest.approx(0.1 * (10 - 128 * 0.4 * 0.0216), rel=1e-5)


def test_a_heavy_workload_gets_the_highest_throughput() -> None:
    plan = made(workload(classes=[a_class(rps=8.0)]), cached=False)
    assert plan.status is PlanStatus.OPTIMAL
    assert plan.instances_per_tp == {1: 8}
    assert 0.5 < plan.mean_threshold < 0.9
    assert plan.busy_per_tp[1] == pytest.approx(8, rel=1e-4)


@pytest.mark.parametrize("impossible", [{"rps": 1000.0}, {"slo_s": 0.01}])
def test_an_infeasible_workload_falls_back_to_the_smallest_degree(impossible: dict[str, float]) -> None:
    plan = made(workload(classes=[a_class(**impossible)]))
    assert (plan.status, plan.reason) == (PlanStatus.FALLBACK, "no configuration meets every SLO")
    assert plan.instances_per_tp == {1: 8}
    assert plan.mean_threshold == 0.5
    assert plan.decision.take
    again = made(workload(classes=[a_class(**impossible)]), placements(plan))
    assert (again.preserved, again.steps, again.decision.take) == (8, [], False)


def test_unneeded_gpus_are_filled_with_instances() -> None:
    plan = made(workload(nodes=[4, 4, 3, 1], classes=[a_class(rps=0.1)]))
    assert sum(degree * count for degree, count in plan.instances_per_tp.items()) == 12
    assert plan.instances_per_tp[4] == 2


@pytest.mark.parametrize("seed", [60, 111, 234])
def test_the_decision_judges_the_plan_that_is_carried_out(seed: int) -> None:
    """Filling unused GPUs with large instances gives up room that Stage 1's own instances have."""
    p = small_input(seed, cached=bool(seed % 2))
    found = find_capacity(p, 60)
    assert isinstance(found, Capacity)
    current = [Placement(node=n, gpus=[gpu], tp=1) for n, gpus in enumerate(p.nodes) for gpu in range(gpus)]
    plan = make_plan(p, current)
    assert plan.sustains < 0.9 * found.sustains
    assert f"to {plan.sustains:.1f} times the load" in plan.decision.reason


def test_a_growing_workload_gets_the_most_room_at_the_same_threshold() -> None:
    load = workload(classes=[a_class(rps=4.0)])
    steady, growing = made(load), made(load, growing=True)
    assert (steady.instances_per_tp, growing.instances_per_tp) == ({4: 2}, {1: 8})
    assert growing.status is PlanStatus.OPTIMAL
    assert growing.mean_threshold == pytest.approx(steady.mean_threshold, rel=1e-6)
    assert growing.slack_s < steady.slack_s
    assert made(load, placements(steady), growing=True).decision.take
    assert not made(workload(classes=[a_class(rps=0.1)]), placements(steady), growing=True).decision.take


@pytest.mark.parametrize(
    ("rps", "slo_s", "take"),
    [
        (27.0, 3.0, False),  # 8 TP-1 meet every SLO of 25 requests a second, and serve more than 6 and a TP-2
        (29.0, 3.0, True),
        (5.0, 1.0, True),  # the SLO is what 8 TP-1 cannot meet, at any load
    ],
)
def test_instances_that_nearly_suffice_keep_their_room(rps: float, slo_s: float, *, take: bool) -> None:
    current = placements(made(workload(classes=[a_class(rps=8.0)]), cached=False))
    plan = made(workload(classes=[a_class(rps=rps, slo_s=slo_s)]), current, growing=True)
    assert plan.instances_per_tp != {1: 8}
    assert plan.decision.take == take, plan.decision.reason
    assert ("cannot meet every SLO; the proposal can" in plan.decision.reason) == take


def test_the_sustained_load_keeps_the_instances_busy() -> None:
    plan = made(workload(classes=[a_class(rps=1.0)]), growing=True)
    within, beyond = (
        made(workload(tp_degrees=[1], classes=[a_class(rps=share * plan.sustains, slo_s=60.0)]))
        for share in (0.999, 1.001)
    )
    assert within.mean_threshold == pytest.approx(0.5, abs=0.002)
    assert beyond.status is PlanStatus.FALLBACK
    assert beyond.sustains == pytest.approx(1 / 1.001)


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """The options that name the files of a command, WORKLOAD.json and PROFILE.csv written."""
    (tmp_path / "workload.json").write_bytes(msgspec.json.encode(workload()))
    write_profile(tmp_path / "profile.csv", PROFILE)
    names = {"--workload": "workload.json", "--profile": "profile.csv", "--out": "plan.json"}
    return [part for option, name in names.items() for part in (option, str(tmp_path / name))]


@pytest.mark.parametrize("options", [[], ["--no-cache"], ["--solver", "cbc"]])
def test_the_command_writes_the_plan(files: list[str], options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", *files, *options, "--json"]) == 0
    out = Path(files[-1])
    plan = msgspec.json.decode(out.read_bytes(), type=Plan)
    assert plan == msgspec.json.decode(capsys.readouterr().out, type=Plan)
    assert plan.status is PlanStatus.OPTIMAL
    assert run(["plan", *files, *options, "--current", str(out)]) == 0
    assert "stay: neither objective improves" in capsys.readouterr().out
    again = msgspec.json.decode(out.read_bytes(), type=Plan)
    assert (again.preserved, again.steps) == (len(plan.instances), [])


@pytest.mark.parametrize(
    ("option", "text", "fault"),
    [
        ("--workload", "{}", "slo_s"),
        ("--profile", "tp,latency\n1,2\n", "needs the columns"),
        ("--current", '{"instances": [{"node": 0, "gpus": [0], "tp": 2}]}', "tp 2 needs as many different GPUs"),
        ("--current", '{"instances": [{"node": 2, "gpus": [0], "tp": 1}]}', "GPU 0 of node 2"),
        ("--solver", None, "cplex"),
    ],
)
def test_invalid_input_prints_one_line(
    files: list[str], tmp_path: Path, option: str, text: str | None, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = tmp_path / "wrong"
    if text is not None:
        wrong.write_text(text)
    assert fault in refusal(capsys, "plan", *files, option, wrong if text is not None else "cplex")
