"""Nodes by name and by number, and the files that the settings name."""

from pathlib import Path

import pytest

from services.reconfigurator.__main__ import read_planner
from services.reconfigurator.nodes import gpus_of, read_nodes, to_placements, to_spec
from services.reconfigurator.planning.plan import Placement
from services.reconfigurator.settings import ReconfiguratorSettings
from shared.errors import BadInput
from shared.messages.cell import DEFAULT_THRESHOLDS
from shared.messages.launch import InstanceSpec

NODES = read_nodes(["a:4", "b.example:2"])


@pytest.mark.parametrize("text", ["a", "a:", ":4", "a:0", "a:-1", "a:x", "a b:4", "-a:4"])
def test_an_invalid_node_is_rejected_with_the_valid_form(text: str) -> None:
    with pytest.raises(BadInput, match="NAME:GPUS"):
        read_nodes([text])


def test_two_nodes_of_one_name_are_rejected() -> None:
    with pytest.raises(BadInput, match="differ"):
        read_nodes(["a:4", "a:2"])


def test_a_lost_node_keeps_its_index_and_has_no_gpus() -> None:
    assert gpus_of(NODES, {"b.example"}) == [0, 2]


def test_placements_leave_out_instances_on_unknown_nodes() -> None:
    specs = [
        InstanceSpec(node="b.example", gpus=(0, 1)),
        InstanceSpec(node="a", gpus=(3,)),
        InstanceSpec(node="a", gpus=(4,)),
        InstanceSpec(node="c", gpus=(0,)),
    ]
    placements = to_placements(specs, NODES, {"a", "b.example"})
    assert placements == [Placement(node=0, gpus=[3], tp=1), Placement(node=1, gpus=[0, 1], tp=2)]
    assert to_placements(specs, NODES, {"a"}) == placements[:1]
    assert [to_spec(place, NODES) for place in placements] == [specs[1], specs[0]]


def test_a_name_is_one_subject_token_and_identifies_the_gpus() -> None:
    assert InstanceSpec(node="b.example", gpus=(0, 1)).name == "worker-b_example-0_1"
    assert InstanceSpec(node="b", gpus=(1, 2)).name != InstanceSpec(node="b-1", gpus=(2,)).name
    with pytest.raises(ValueError, match="ascend"):
        InstanceSpec(node="a", gpus=(1, 0))


DEMO = Path(__file__).parents[3] / "models" / "demo"


def test_the_step_predictor_is_that_of_the_model_if_it_has_one(tmp_path: Path) -> None:
    for model, thresholds in ((DEMO, DEFAULT_THRESHOLDS), (tmp_path, ())):
        planner, _ = read_planner(ReconfiguratorSettings(model=str(model)))
        assert set(planner.prior) == set(thresholds)
