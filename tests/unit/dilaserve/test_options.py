"""The options of `dilaserve up` and their error texts."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from dilaserve.stack.options import (
    Stack,
    check_nats_nodes,
    check_options,
    check_profile,
    check_sync_interval,
    choose_cache,
    count_slots,
    read_instances,
    read_thresholds,
    share_cores,
)
from dilaserve.stack.ports import client_url
from dilaserve.stack.process import Program
from dilaserve.stack.services import SETTINGS, StackPrograms
from dilaserve.stack.supervisor import INITIAL_WAIT_S, MAX_WAIT_S, STABLE_RUN_S, next_wait_s
from dilaserve.stack.up_options import UpOptions, with_up_options
from shared.bus.users import BusUser
from shared.errors import BadInput
from shared.messages.cell import CacheName, CellConfig
from tests.support.gemma_files import write_gemma_files
from tests.support.tiny_model import write_tiny_sdar

URLS: dict[str, str] = dict.fromkeys(BusUser, "nats://h")
PROFILE = "tp,batch_tokens,step_kind,latency_ms\n1,64,recompute,2.5\n"


@pytest.mark.parametrize(
    ("text", "slots", "expected"),
    [(None, 1, (1,)), (None, 2, (1, 1)), (None, 64, (1, 1)), ("3x1", 4, (1, 1, 1)), ("1x1, 2x1", 4, (1, 1, 1))],
)
def test_instances_are_counts_of_tp_degrees_by_default_two_if_they_fit(
    text: str | None, slots: int, expected: tuple[int, ...]
) -> None:
    assert read_instances(text, slots) == expected


@pytest.mark.parametrize(
    ("cores", "ranks", "threads"), [(1, 1, 1), (2, 1, 1), (2, 2, 1), (8, 1, 7), (8, 2, 4), (16, 4, 4)]
)
def test_ranks_share_the_cores_except_one_for_the_services(cores: int, ranks: int, threads: int) -> None:
    assert share_cores(cores, ranks) == threads


def test_the_cache_fits_the_model(tiny_model_dir: Path, tmp_path: Path) -> None:
    sdar = write_tiny_sdar(tmp_path / "sdar")
    assert (choose_cache(None, tiny_model_dir), choose_cache(None, sdar)) == ("dual", "block")
    assert (choose_cache("prefix", tiny_model_dir), choose_cache("none", sdar)) == ("prefix", "none")
    gemma = write_gemma_files(tmp_path / "gemma")
    impossible: list[tuple[CacheName, Path]] = [("block", tiny_model_dir), ("dual", sdar), ("none", gemma)]
    for cache, model in impossible:
        with pytest.raises(BadInput, match=f"--cache {cache}: not possible with this model"):
            choose_cache(cache, model)


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("0.0.0.0", "http://127.0.0.1:80"),  # noqa: S104  (an option's value)
        ("::", "http://[::1]:80"),
        ("fe80::1", "http://[fe80::1]:80"),
        ("node-1", "http://node-1:80"),
    ],
)
def test_client_url_reaches_the_listening_address(host: str, url: str) -> None:
    assert client_url(host, 80) == url


@pytest.mark.parametrize(
    ("slots", "device", "gpus", "expected"),
    [(None, "auto", 4, 4), (2, "auto", 4, 2), (None, "cuda", 1, 1), (8, "cpu", 4, 8), (8, "auto", 0, 8)],
)
def test_each_gpu_is_a_slot(slots: int | None, device: str, gpus: int, expected: int) -> None:
    assert count_slots(slots, device, gpus) == expected


@pytest.mark.parametrize(
    ("read", "texts", "accepted"),
    [
        (
            partial(read_instances, slots=8),
            ["", "2", "x1", "2x", "0x1", "2x0", "-1x1", "2x1,", "axb", "2x1;1x1"],
            "such as 2x1",
        ),
        (read_thresholds, ["", "high", "0", "1.1", "-0.5", "0.5,,0.9", "nan", "inf"], r"numbers in \(0, 1\]"),
        (check_sync_interval, ["", "2", "often", "2m; port: 1", "-1s"], "accepted: always"),
    ],
)
def test_malformed_values_are_rejected_with_the_accepted_form(
    read: Callable[[str], object], texts: list[str], accepted: str
) -> None:
    for text in texts:
        with pytest.raises(BadInput, match=accepted):
            read(text)


@pytest.mark.parametrize(
    ("check", "error"),
    [
        (lambda: count_slots(5, "auto", 4), "there are 4 GPUs, and each is one slot"),
        (lambda: count_slots(None, "cuda", 0), "nvidia-smi lists no GPU"),
        (lambda: read_instances("3x1", slots=2), "needs 3 slots; there are 2"),
        (lambda: read_instances("1x3", slots=8), "TP 3 is not supported; accepted: 1, 2, 4"),
        *(
            (lambda count=count: check_nats_nodes(count, None), f"--nats-nodes {count}: accepted: 1, 3, 5")
            for count in (0, 2, 4, 7)
        ),
        (
            lambda: check_nats_nodes(3, "nats://127.0.0.1:4222"),
            "--nats-nodes 3: not with --nats-url; name each server of your cluster there",
        ),
    ],
)
def test_options_that_cannot_be_honoured_are_rejected(check: Callable[[], object], error: str) -> None:
    with pytest.raises(BadInput, match=error):
        check()


def test_valid_values_are_accepted_and_thresholds_sorted_and_unique() -> None:
    check_sync_interval("always")
    for count, url in ((1, "nats://127.0.0.1:4222"), (3, None)):
        check_nats_nodes(count, url)
    assert read_thresholds("0.9,0.5, 0.7,0.9") == (0.5, 0.7, 0.9)


def test_a_given_profile_has_every_running_tp_degree(tmp_path: Path) -> None:
    check_profile(None, [1])
    path = tmp_path / "profile.csv"
    path.write_text(PROFILE)
    check_profile(path, [1, 1])
    with pytest.raises(BadInput, match="no rows for tp 2"):
        check_profile(path, [1, 2])


@pytest.mark.parametrize(
    ("gpus", "options", "expected"),
    [
        (2, {}, True),
        (2, {"reconfigure": False}, False),
        (2, {"slots": 1}, False),
        (2, {"device": "cpu", "slots": 4}, False),
        (1, {}, False),
        (0, {"slots": 4}, False),
        (0, {"slots": 4, "reconfigure": True}, True),
    ],
)
def test_the_instances_of_several_gpus_are_planned_by_default(
    gpus: int, options: dict[str, Any], tiny_checkpoint_dir: Path, monkeypatch: pytest.MonkeyPatch, *, expected: bool
) -> None:
    monkeypatch.setattr("dilaserve.stack.options.num_gpus", lambda: gpus)
    assert check_options(UpOptions(model=str(tiny_checkpoint_dir), **options)).reconfigures == expected


def test_the_planner_uses_the_tp_degrees_of_a_given_profile(tmp_path: Path) -> None:
    profile = tmp_path / "profile.csv"
    profile.write_text(PROFILE)
    cases: list[tuple[dict[str, Any], str]] = [({}, "1,2"), ({"profile": profile}, "1")]
    for options, degrees in cases:
        _, started = programs(tmp_path, **options)
        assert started[-1].environ["DILASERVE_TP_DEGREES"] == degrees


def test_a_profile_of_the_environment_counts_as_the_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[UpOptions] = []
    app = typer.Typer()
    app.command()(with_up_options(given.append))
    monkeypatch.setenv("DILASERVE_PROFILE", str(tmp_path / "profile.csv"))
    assert CliRunner().invoke(app).exit_code == 0
    monkeypatch.setenv("DILASERVE_PROFILE", "")
    assert CliRunner().invoke(app).exit_code == 0
    assert [options.profile for options in given] == [tmp_path / "profile.csv", None]


@given(last_s=st.floats(0, 100), ran_s=st.floats(0, 100))
def test_the_wait_doubles_up_to_a_bound_and_resets_after_a_stable_run(last_s: float, ran_s: float) -> None:
    wait_s = next_wait_s(last_s, ran_s)
    assert INITIAL_WAIT_S <= wait_s <= MAX_WAIT_S
    assert wait_s == INITIAL_WAIT_S if ran_s >= STABLE_RUN_S else wait_s >= min(last_s, MAX_WAIT_S)


CONFIG = CellConfig(model="m", policy="dilaserve", cache="dual", predictor="v1")


def programs(directory: Path, urls: Mapping[str, str] = URLS, **options: Any) -> tuple[Stack, list[Program]]:
    """A stack of two instances, and all its services."""
    given = UpOptions(first_metrics_port=9100, data_dir=directory, **options)
    stack = Stack(options=given, model=directory, model_name="m", instances=(1, 1), slots=2, auth=False)
    found = StackPrograms(stack, urls, "url")
    return stack, [*found.gateways(None), *found.serving(CONFIG), found.reconfigurator()]


@pytest.mark.parametrize("standby", [False, True])
@pytest.mark.parametrize("gateways", [1, 3])
def test_every_program_has_a_metrics_port_of_its_own(*, gateways: int, standby: bool, tmp_path: Path) -> None:
    """One gateway alone has that of the API."""
    stack, started = programs(tmp_path, standby=standby, gateways=gateways)
    ports = [int(program.environ["DILASERVE_METRICS_PORT"]) for program in started]
    assert sorted(port for port in ports if port) == [*stack.metrics_ports.values()]
    assert ports.count(0) == (gateways == 1)
    assert sum("services.gateway" in program.command for program in started) == gateways
    assert len({program.name for program in started}) == len(started)
    assert sum("services.scheduler" in program.command for program in started) == 1 + standby


def test_a_service_gets_the_password_of_its_own_user_only(tmp_path: Path) -> None:
    urls: dict[str, str] = {user: f"nats://{user}:secret@h" for user in BusUser}
    _, started = programs(tmp_path, urls, standby=True)
    for program in started:
        own = BusUser(program.command[-1].removeprefix("services."))
        assert program.environ["DILASERVE_NATS_URL"] == urls[own]
        assert str(program.environ).count("secret") == 1


@pytest.mark.parametrize(
    ("options", "store"), [({}, "nats/store"), ({"nats_nodes": 3}, "nats-1/store"), ({"nats_url": "nats://h"}, None)]
)
def test_gateways_watch_the_disk_of_the_embedded_bus(
    options: dict[str, Any], store: str | None, tmp_path: Path
) -> None:
    _, started = programs(tmp_path, gateways=2, **options)
    found = [program.environ.get("DILASERVE_BUS_STORE_DIR") for program in started]
    assert [path for path in found if path is not None] == ([str(tmp_path / store)] * 2 if store else [])


def test_an_option_sets_every_service_that_has_its_setting(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text(PROFILE)
    given: dict[str, Any] = {"cache": "none", "default_slo_s": 7.0, "profile": tmp_path / "p.csv", "shed": True}
    _, started = programs(tmp_path, **given)
    expected = {
        "DILASERVE_CACHE": ("none", {"scheduler"}),
        "DILASERVE_DEFAULT_SLO_S": ("7.0", {"scheduler"}),
        "DILASERVE_PROFILE": (str(tmp_path / "p.csv"), {"worker", "reconfigurator"}),
        "DILASERVE_SHED": ("true", {"scheduler"}),
        "DILASERVE_MODEL_NAME": ("m", {"gateway", "scheduler", "worker"}),
    }
    for variable, (value, services) in expected.items():
        found = {program.command[-1].removeprefix("services."): program.environ.get(variable) for program in started}
        assert {service for service, text in found.items() if text is not None} == services
        assert set(found.values()) <= {value, None}


def test_an_option_that_is_not_given_leaves_the_environment_to_the_services(tmp_path: Path) -> None:
    _, started = programs(tmp_path)
    for name in ("POLICY", "THRESHOLDS", "DEFAULT_SLO_S", "CACHE", "DTYPE", "PROFILE"):
        assert all(f"DILASERVE_{name}" not in program.environ for program in started)


def test_the_defaults_of_options_and_settings_are_the_same() -> None:
    """Options without a default of their own leave it to the settings."""
    for kind in SETTINGS.values():
        defaults = {field.name: field.default for field in msgspec.structs.fields(kind)}
        for name, option in UpOptions.__dataclass_fields__.items():
            if option.default is not None and name in defaults and name != "model":
                assert option.default == defaults[name], name
