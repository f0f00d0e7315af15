"""The planner's input: units, and invalid workloads."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from services.reconfigurator.planning.plan_input import PlanInput, read_workload
from shared.errors import BadInput
from shared.messages.steps import StepKind
from shared.profile import LatencyProfile, MeasuredLatency
from tests.support.workloads import PROFILE, a_class, workload


def test_latencies_are_in_seconds_by_degree_and_batch_size() -> None:
    p = PlanInput(workload(), PROFILE)
    assert p.steps[StepKind.RECOMPUTE].L[0] == pytest.approx([0.0216, 0.0328, 0.1224])
    assert p.steps[StepKind.CACHE].L[2, 1] == pytest.approx(0.4 * 0.0328)


def test_a_recompute_step_computes_the_sequence_and_a_cache_step_the_block() -> None:
    p = PlanInput(workload(), PROFILE)
    assert [p.steps[kind].tokens.tolist() for kind in StepKind] == [[356.0], [32.0]]


def test_with_an_exact_cache_a_request_recomputes_once_up_to_its_first_block() -> None:
    """The first cache step of each of the 7 further blocks feeds two blocks."""
    p = PlanInput(workload(exact_cache=True), PROFILE)
    assert p.recomputes.tolist() == [1.0]
    assert p.steps[StepKind.RECOMPUTE].tokens.tolist() == [132.0]
    assert p.steps[StepKind.CACHE].tokens == pytest.approx([32 * (1 + 7 / (256 / 6))])
    assert PlanInput(workload(), PROFILE).recomputes.tolist() == [8.0]


def test_a_recompute_batch_that_shares_a_launch_keeps_its_latency_and_costs_less() -> None:
    separate = PlanInput(workload(), PROFILE).steps
    merged = PlanInput(workload(), PROFILE.with_shared_launch(0.010)).steps
    assert separate[StepKind.RECOMPUTE].busy == pytest.approx(separate[StepKind.RECOMPUTE].L)
    assert np.allclose(merged[StepKind.RECOMPUTE].L, separate[StepKind.RECOMPUTE].L)
    assert merged[StepKind.CACHE].busy == pytest.approx(separate[StepKind.CACHE].busy)
    largest = -1  # 356 tokens in 8 blocks, against 34.7 cache steps of 32 tokens in batches of 2,048
    share = (256 / 6 - 8) * 32 / (8 * 356)
    saved = separate[StepKind.RECOMPUTE].L[0, largest] - merged[StepKind.RECOMPUTE].busy[0, largest]
    assert saved == pytest.approx(0.010 * share)


@pytest.mark.parametrize(("exact_cache", "keys"), [(False, 100 + 256), (True, 100 + (32 + 256) / 2)])
def test_cache_steps_cost_the_keys_that_they_attend_to(*, exact_cache: bool, keys: float) -> None:
    """With an exact cache those to the end of the block: of the first 132, of the last 356."""
    rows = [
        MeasuredLatency(1, tokens, kind, 0.020 + tokens * 1e-5 + keys * 1e-6, keys)
        for kind in StepKind
        for tokens in (32, 256, 2048)
        for keys in (2048, 65_536)
    ]
    p = PlanInput(workload(tp_degrees=[1], exact_cache=exact_cache), LatencyProfile.from_rows(rows))
    assert p.steps[StepKind.CACHE].L[0, 2] == pytest.approx(0.020 + 2048e-5 + 2048 / 32 * keys * 1e-6)


def test_without_a_cache_all_steps_are_recompute_steps() -> None:
    assert PlanInput(workload(), PROFILE, cached=False).J == [StepKind.RECOMPUTE]


def test_thresholds_degrees_and_batch_sizes_ascend() -> None:
    p = PlanInput(workload(thresholds=[0.9, 0.5], tp_degrees=[4, 1], batch_sizes=[256, 32]), PROFILE)
    assert (p.thresholds.tolist(), p.T.tolist()) == ([0.5, 0.9], [6.0, 2.0])
    assert (p.degrees, p.batches.tolist()) == ((1, 4), [32.0, 256.0])


def test_the_slo_of_a_class_overrides_that_of_the_workload() -> None:
    p = PlanInput(workload(classes=[a_class(name="a"), a_class(name="b", slo_s=3.0)]), PROFILE)
    assert p.SLO.tolist() == [10.0, 3.0]


def test_a_profile_must_have_the_required_degrees_and_kinds() -> None:
    with pytest.raises(BadInput, match="no recompute rows for tp 8"):
        PlanInput(workload(tp_degrees=[8], nodes=[8]), PROFILE)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"slo_s": 0}, r"> 0.*\$\.slo_s"),
        ({"thresholds": []}, r"length >= 1.*\$\.thresholds"),
        ({"thresholds": [0.5, 0.5]}, "thresholds must differ"),
        ({"thresholds": [0.6]}, r"tokens_per_step lacks the thresholds \[0.6\]"),
        ({"tokens_per_step": {"0.5": 0.5, "0.7": 4, "0.9": 2}}, ">= 1.*tokens_per_step"),
        ({"block_length": 5}, "at most block_length, 5"),
        ({"tp_degrees": [0]}, r">= 1.*\$\.tp_degrees"),
        ({"tp_degrees": [8], "nodes": [4]}, "no node holds an instance"),
        ({"batch_sizes": [32.5]}, "batch_sizes"),
        ({"nodes": [-1]}, r">= 0.*\$\.nodes"),
        ({"classes": []}, "length >= 1.*classes"),
        ({"classes": [a_class(rps=0)]}, "no class has an rps above 0"),
        ({"classes": [a_class(), a_class()]}, "names of classes must differ"),
        ({"classes": [a_class(output_tokens="many")]}, r"\$\.classes"),
    ],
)
def test_an_invalid_workload_is_rejected_with_the_valid_form(
    tmp_path: Path, change: dict[str, Any], fault: str
) -> None:
    path = tmp_path / "workload.json"
    path.write_bytes(msgspec.json.encode(msgspec.to_builtins(workload(), str_keys=True) | change))
    with pytest.raises(BadInput, match=fault):
        read_workload(path)


def test_unknown_fields_are_ignored_and_a_missing_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "workload.json"
    path.write_bytes(msgspec.json.encode(msgspec.to_builtins(workload(), str_keys=True) | {"comment": "hello"}))
    assert read_workload(path) == workload()
    with pytest.raises(BadInput, match=r"none\.json"):
        read_workload(tmp_path / "none.json")
