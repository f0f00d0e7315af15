"""Which values of a service's environment agree with the configuration of its cell."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from services.scheduler.cell import cell_config, own_values, with_config
from services.scheduler.settings import SchedulerSettings
from shared.cell_config import check_config
from shared.errors import BadInput
from shared.messages.cell import CellConfig
from shared.messages.instances import ModelCard
from shared.predictor_card import PredictorCard
from shared.settings import read_settings

MODEL = ModelCard(name="m", max_length=512, mask_token_id=0, eos_token_id=1, vocab_size=100)
BLOCK_CAUSAL = ModelCard(name="m", max_length=512, mask_token_id=0, eos_token_id=1, vocab_size=100, block_length=4)
CARD = PredictorCard(version="v1", features=[], thresholds=[0.9], tokens_per_step=[2.0])
CONFIG = CellConfig(model="m", policy="dilaserve", cache="dual", predictor="v1")

thresholds = st.lists(st.floats(0.1, 1.0), max_size=3).map(tuple)
environments = st.builds(
    SchedulerSettings,
    model=st.just("m"),
    policy=st.sampled_from([None, "dilaserve", "paper", "fixed"]),
    threshold=st.none() | st.floats(0.1, 1.0),
    thresholds=thresholds,
    default_slo_s=st.none() | st.floats(0.1, 100.0),
    cache=st.sampled_from([None, "none", "prefix", "dual"]),
)


@pytest.mark.parametrize(
    ("own", "differing"),
    [
        ({"model": "n"}, "the model n, not m"),
        ({"cache": "none"}, "DILASERVE_CACHE=none, not dual"),
        ({"thresholds": (0.9,)}, "DILASERVE_THRESHOLDS=0.9, not 0.5,0.6,0.7,0.8,0.9"),
        ({"default_slo_s": 7.0}, "DILASERVE_DEFAULT_SLO_S=7.0, not 5.0"),
        ({"policy": "paper"}, "DILASERVE_POLICY=paper, not dilaserve"),
        ({"predictor": "v2"}, "the step predictor v2, not v1"),
        ({"predictor": "none"}, "the step predictor none, not v1"),
    ],
)
def test_a_value_that_differs_is_named_with_both_values(own: dict[str, object], differing: str) -> None:
    with pytest.raises(BadInput) as refused:
        check_config("cell0", CONFIG, own)
    assert differing in refused.value.message
    assert "\n" not in refused.value.message


def test_all_values_that_differ_are_named_in_one_line() -> None:
    with pytest.raises(BadInput, match=r"CACHE=none.*; DILASERVE_POLICY=paper"):
        check_config("cell0", CONFIG, {"cache": "none", "policy": "paper"})


def test_values_that_are_not_set_agree() -> None:
    check_config("cell0", CONFIG, {"model": "m", "cache": None, "thresholds": (), "threshold": None})


def test_a_value_that_the_cell_does_not_use_may_differ() -> None:
    fixed = CellConfig(model="m", policy="fixed", cache="dual", threshold=0.9)
    check_config("cell0", fixed, {"predictor": "v7"})
    check_config("cell0", CONFIG, {"threshold": 0.7})


@given(environments)
def test_the_scheduler_that_writes_a_configuration_agrees_with_it(settings: SchedulerSettings) -> None:
    for card in (None, CARD):
        config = cell_config(settings, MODEL, card)
        check_config("cell0", config, own_values(settings, MODEL, card))
        adopted = with_config(SchedulerSettings(model="m"), config)
        assert cell_config(adopted, MODEL, card) == config  # a scheduler with no values of its own runs the same


def test_unset_values_follow_the_model_and_its_step_predictor() -> None:
    unset = SchedulerSettings(model="m")
    assert cell_config(unset, MODEL, CARD) == CONFIG
    without = cell_config(unset, BLOCK_CAUSAL, None)
    assert (without.policy, without.cache, without.predictor) == ("dilaserve", "block", "")
    assert cell_config(SchedulerSettings(model="m", policy="fixed"), MODEL, CARD).threshold == 0.9


@pytest.mark.parametrize(
    ("usual", "own", "expected"),
    [(None, None, 1.0), (None, 1.0, 1.0), (1.0, None, 1.0), (0.5, None, 0.5), (0.5, 0.3, 0.3)],
)
def test_the_edit_threshold_is_the_settings_or_else_the_models(
    usual: float | None, own: float | None, expected: float
) -> None:
    model = replace(BLOCK_CAUSAL, edit_threshold=usual)
    config = cell_config(SchedulerSettings(model="m", edit_threshold=own), model, None)
    assert config.edit_threshold == expected
    assert with_config(SchedulerSettings(model="m"), config).edit_threshold == expected


def test_a_model_that_does_not_change_tokens_has_no_edit_threshold() -> None:
    with pytest.raises(BadInput, match=r"DILASERVE_EDIT_THRESHOLD=0.5: m does not change tokens; accepted: 1"):
        cell_config(SchedulerSettings(model="m", edit_threshold=0.5), BLOCK_CAUSAL, None)


def test_an_empty_variable_of_a_shared_value_counts_as_not_set() -> None:
    names = ("POLICY", "CACHE", "THRESHOLDS", "DEFAULT_SLO_S", "THRESHOLD")
    environ = {"DILASERVE_MODEL": "m"} | {f"DILASERVE_{name}": "" for name in names}
    assert read_settings(SchedulerSettings, environ) == SchedulerSettings(model="m")


def test_the_planner_uses_the_threshold_of_a_policy_with_one_for_all() -> None:
    assert CONFIG.used_thresholds == (0.5, 0.6, 0.7, 0.8, 0.9)
    assert CellConfig(model="m", policy="fixed", cache="dual", threshold=0.7).used_thresholds == (0.7,)
