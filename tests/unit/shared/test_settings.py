"""Settings from the environment, and the configuration of a cell that follows from them."""

import socket
from typing import Literal

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from services.scheduler.cell import cell_config
from services.scheduler.settings import SchedulerSettings
from shared.errors import BadInput
from shared.messages.cell import CacheName, CellConfig
from shared.messages.instances import ModelCard
from shared.metrics_server import serve_metrics
from shared.predictor_card import PredictorCard
from shared.settings import Positive, ServiceSettings, read_settings
from tests.builders import model_card


class Example(ServiceSettings, frozen=True, kw_only=True):
    count: Positive = 1
    names: tuple[str, ...] = ("a",)
    ratios: tuple[float, ...] = ()
    on: bool = False
    color: Literal["red", "blue"] = "red"


def test_fields_are_read_from_their_variables_and_others_are_ignored() -> None:
    environ = {
        "DILASERVE_COUNT": "3",
        "DILASERVE_RATIOS": "0.5, 0.9",
        "DILASERVE_ON": "true",
        "HOME": "/",
        "COUNT": "9",
    }
    assert read_settings(Example, environ) == Example(count=3, ratios=(0.5, 0.9), on=True)


@pytest.mark.parametrize(
    ("variable", "value", "accepted"),
    [
        ("COUNT", "0", ">= 1"),
        ("COUNT", "many", "int"),
        ("CELL", "No Spaces", "matching regex"),
        ("NATS_URL", "nats://127.0.0.1/path", "accepted: nats://HOST:PORT"),
        ("NATS_URL", "http://127.0.0.1:4222", "accepted: nats://HOST:PORT"),
        ("RATIOS", "0.5,x", "float"),
        ("COLOR", "green", "accepted: blue, red"),
    ],
)
def test_an_invalid_value_reports_variable_value_and_accepted_values(variable: str, value: str, accepted: str) -> None:
    with pytest.raises(BadInput, match=accepted) as raised:
        read_settings(Example, {f"DILASERVE_{variable}": value})
    assert raised.value.message.startswith(f"DILASERVE_{variable}={value!r}:")


@pytest.mark.parametrize(
    "url",
    [
        *("nats://nats", "localhost:4222", "tls://me:s3cret@[::1]:4222/", "nats://token@a.b-c.d:1"),
        *("nats://me:p@ss@nats", "nats://me:a,b@nats", "nats://me:p@a:1,nats://me:p@b:2"),
        "tls://me:p@a,tls://me:p@b",
    ],
)
def test_every_url_that_nats_accepts_is_accepted(url: str) -> None:
    assert read_settings(Example, {"DILASERVE_NATS_URL": url}).nats_url == url


MODEL, BLOCK_CAUSAL = model_card(), model_card(block_length=4)
CARD = PredictorCard(version="v1", features=[], thresholds=[0.9], tokens_per_step=[2.0])
CONFIG = CellConfig(model="m", policy="dilaserve", cache="dual", predictor="v1")


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


def test_a_model_that_does_not_change_tokens_has_no_edit_threshold() -> None:
    with pytest.raises(BadInput, match=r"DILASERVE_EDIT_THRESHOLD=0.5: m does not change tokens; accepted: 1"):
        cell_config(SchedulerSettings(model="m", edit_threshold=0.5), BLOCK_CAUSAL, None)


@pytest.mark.parametrize(("model", "cache"), [(MODEL, "block"), (BLOCK_CAUSAL, "dual"), (BLOCK_CAUSAL, "prefix")])
def test_the_scheduler_refuses_a_cache_that_the_model_cannot_use(model: ModelCard, cache: CacheName) -> None:
    with pytest.raises(BadInput, match=f"DILASERVE_CACHE={cache}: not possible with this model; accepted: .*none"):
        cell_config(SchedulerSettings(model="m", cache=cache), model, None)


def test_an_empty_variable_of_a_shared_value_counts_as_not_set() -> None:
    names = ("POLICY", "CACHE", "THRESHOLDS", "DEFAULT_SLO_S", "THRESHOLD")
    environ = {"DILASERVE_MODEL": "m"} | {f"DILASERVE_{name}": "" for name in names}
    assert read_settings(SchedulerSettings, environ) == SchedulerSettings(model="m")


def test_the_planner_uses_the_threshold_of_a_policy_with_one_for_all() -> None:
    assert CONFIG.used_thresholds == (0.5, 0.6, 0.7, 0.8, 0.9)
    assert CellConfig(model="m", policy="fixed", cache="dual", threshold=0.7).used_thresholds == (0.7,)


def test_a_taken_metrics_port_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(BadInput, match=f"cannot serve metrics on 127.0.0.1:{port}: Address already in use"):
            serve_metrics(CollectorRegistry(), ServiceSettings(metrics_port=port))
