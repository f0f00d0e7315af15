"""The start of a stack: its report, the SLO that it derives, and the file with its addresses."""

import json
import shutil
import stat
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from dilaserve.stack import checks, data_dir
from dilaserve.stack.data_dir import Addresses, find_addresses, lock_directory, read_addresses, write_addresses
from dilaserve.stack.first_run import summary, with_default_slo
from dilaserve.stack.options import Stack
from dilaserve.stack.up_options import DEMO_MODEL, UpOptions
from shared.bus.users import BusUser
from shared.errors import BadInput
from shared.messages.cell import CellConfig
from tests.support.gemma_files import write_gemma_files
from tests.support.present import present
from tests.support.tiny_model import write_tiny_llada2

PROFILE = """tp,batch_tokens,step_kind,latency_ms
1,32,recompute,10
1,1024,recompute,40
1,32,cache,10
1,1024,cache,20
"""


@pytest.fixture
def stack(tiny_model_dir: Path, tmp_path: Path) -> Stack:
    """A stack of a model without a step predictor, with a profile."""
    profile = tmp_path / "profile.csv"
    profile.write_text(PROFILE)
    model = Path(shutil.copytree(tiny_model_dir, tmp_path / "model"))
    options = UpOptions(profile=profile)
    return Stack(options=options, model=model, model_name="m", instances=(1,), slots=1, auth=False)


def with_predictor(stack: Stack) -> Stack:
    shutil.copytree(DEMO_MODEL / "predictor", stack.model / "predictor")
    return stack


def test_the_default_slo_follows_from_the_profile_and_the_step_predictor(stack: Stack) -> None:
    slo_s = present(with_default_slo(with_predictor(stack)).options.default_slo_s)
    card = json.loads((stack.model / "predictor" / "card.json").read_text())
    tokens_per_step = dict(zip(card["thresholds"], card["tokens_per_step"], strict=True))[0.9]
    blocks, block_steps = 256 / 32, 32 / tokens_per_step
    alone_s = blocks * (0.0251 + (block_steps - 1) * 0.010)  # 512 tokens take 25.1 ms by interpolation
    assert slo_s == pytest.approx(5 * alone_s, rel=0.05)


def test_a_chosen_slo_stays(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = replace(with_predictor(stack), options=replace(stack.options, default_slo_s=2.0))
    assert with_default_slo(chosen) == chosen
    monkeypatch.setenv("DILASERVE_DEFAULT_SLO_S", "3")
    assert with_default_slo(stack) == stack


def test_without_a_step_predictor_and_for_the_demo_model_no_slo_is_derived(stack: Stack) -> None:
    assert with_default_slo(stack) == stack
    demo = replace(stack, model=DEMO_MODEL)
    assert with_default_slo(demo) == demo


@pytest.mark.parametrize(
    ("config", "line"),
    [
        (CellConfig(model="m", policy="dilaserve", cache="dual"), "dilaserve, steps left by one-shot estimates"),
        (CellConfig(model="m", policy="dilaserve", cache="dual", predictor="v1"), "by the step predictor v1"),
        (CellConfig(model="m", policy="fixed", cache="dual", threshold=0.9), "deadlines do not change it"),
    ],
)
def test_the_policy_and_its_estimates_are_reported(config: CellConfig, line: str, stack: Stack) -> None:
    assert line in "\n".join(summary(stack, stack, config))


def test_missing_parts_are_reported_with_their_command(stack: Stack) -> None:
    without = replace(stack, options=UpOptions())
    lines = "\n".join(summary(without, without, CellConfig(model="m", policy="dilaserve", cache="dual")))
    assert "Missing:        a step predictor; a latency profile, so each instance measures a quick one." in lines
    assert "`dilaserve tune`" in lines
    complete = "\n".join(summary(stack, stack, CellConfig(model="m", policy="dilaserve", cache="dual", predictor="v")))
    assert "Missing" not in complete


def test_a_checkpoint_with_canvases_is_reported_with_its_ends_tools_and_sampler(tmp_path: Path) -> None:
    model = write_gemma_files(tmp_path / "gemma")
    stack = Stack(options=UpOptions(), model=model, model_name="m", instances=(1,), slots=1, auth=False)
    config = CellConfig(model="m", policy="dilaserve", cache="block")
    lines = list(summary(stack, stack, config))
    assert "Model:          m: diffusion_gemma (block-causal, canvases of 16), at most 4096 tokens" in lines
    assert "Ends of text:   <eos>, <turn|>, <|tool_response>" in lines
    assert (
        "Tools:          calls between <|tool_call> and <tool_call|>, without constraints on their arguments" in lines
    )
    [sampling] = [line for line in lines if line.startswith("Sampling:")]
    assert "at most 48 steps of a canvas, by the authors' code, as generation_config.json is missing" in sampling
    (model / "generation_config.json").write_text(json.dumps({"max_denoising_steps": 12, "eos_token_id": 3}))
    (model / "chat_template.jinja").unlink()
    lines = list(summary(stack, stack, config))
    assert "Sampling:       at most 12 steps of a canvas, by the files; images are refused" in lines
    assert "Chat template:  none, so chats are refused; /v1/completions works" in lines
    assert not any(line.startswith("Tools:") for line in lines)


@pytest.mark.parametrize(
    ("edit_threshold", "line"), [(0.5, "0.5, as in LLaDA2.1"), (1.0, "1, as in LLaDA2.0; LLaDA2.1 needs 0.5")]
)
def test_the_edits_that_follow_from_a_name_are_reported(edit_threshold: float, line: str, tmp_path: Path) -> None:
    model = write_tiny_llada2(tmp_path / "m")
    stack = Stack(options=UpOptions(), model=model, model_name="m", instances=(1,), slots=1, auth=False)
    config = CellConfig(model="m", policy="dilaserve", cache="block", edit_threshold=edit_threshold)
    assert f"Edits:          --edit-threshold {line}" in list(summary(stack, stack, config))


def test_the_tools_of_a_template_without_them_are_reported(stack: Stack) -> None:
    lines = list(summary(stack, stack, CellConfig(model="m", policy="dilaserve", cache="dual")))
    assert "Ends of text:   <|endoftext|>" in lines
    assert any(line.startswith("Tools:          the chat template has none") for line in lines)


NOBODY = "127.0.0.1:1"  # no server answers
NATS_URL = f"nats://u:secret@{NOBODY}"
ADDRESSES = Addresses(
    url=f"http://{NOBODY}",
    nats_url=NATS_URL,
    nats_urls=dict.fromkeys(BusUser, NATS_URL),
    database_url=f"postgresql://u:secret@{NOBODY}/d",
)


def test_only_the_owner_can_read_the_addresses(tmp_path: Path) -> None:
    file = tmp_path / "stack.json"
    file.write_text("of an earlier version")
    file.chmod(0o644)
    write_addresses(tmp_path, ADDRESSES)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert read_addresses(tmp_path) == ADDRESSES


async def test_doctor_shows_no_password_of_the_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dilaserve.stack.probes.ANSWER_TIMEOUT_S", 0.3)
    write_addresses(tmp_path, ADDRESSES)
    details = [finding.detail for finding in await checks.stack(tmp_path, 0, {})]
    assert details == [
        f"nats://{NOBODY} does not answer",
        f"postgresql://{NOBODY}/d does not answer",
        f"http://{NOBODY} is not ready: the gateway does not answer",
    ]


def test_doctor_checks_the_model_of_the_running_stack(tmp_path: Path) -> None:
    assert checks.running_model(tmp_path) == str(DEMO_MODEL)
    write_addresses(tmp_path, msgspec.structs.replace(ADDRESSES, model="/models/own"))
    assert checks.running_model(tmp_path) == "/models/own"


def test_in_the_gateways_container_the_addresses_are_those_of_its_environment(tmp_path: Path) -> None:
    environ = {"DILASERVE_STATUS_NATS_URL": NATS_URL, "DILASERVE_DATABASE_URL": ADDRESSES.database_url}
    found = find_addresses(tmp_path, environ)
    assert (found.nats_urls[BusUser.STATUS], found.database_url) == (NATS_URL, ADDRESSES.database_url)
    assert found.url == "http://127.0.0.1:8000"
    with pytest.raises(BadInput, match="no stack in"):
        find_addresses(tmp_path, {})
    write_addresses(tmp_path, ADDRESSES)
    assert find_addresses(tmp_path, environ) == ADDRESSES


def test_in_a_container_doctor_looks_only_for_the_packages_of_its_service() -> None:
    found = checks.machine({"SERVICE": "gateway"})
    assert [finding.subject for finding in found if "packages" in finding.subject] == ["packages: gateway"]
    assert len(checks.machine({"SERVICE": "something else"})) > len(found)


def test_in_a_container_doctor_reports_the_disk_of_the_bus_if_it_sees_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {"SERVICE": "gateway", "DILASERVE_BUS_STORE_DIR": str(tmp_path)}
    [found] = checks.bus_disk(environ)
    assert found.subject == "disk of the bus"
    assert found.detail.startswith(f"{tmp_path}: ")
    monkeypatch.setattr(checks, "MIN_DISK_GIB", float("inf"))
    assert [finding.ok for finding in checks.bus_disk(environ)] == [False]
    assert checks.bus_disk(environ | {"DILASERVE_BUS_STORE_DIR": str(tmp_path / "none")}) == []
    assert checks.bus_disk({}) == []


def test_a_start_on_a_full_disk_is_refused_in_one_line_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_dir, "MIN_FREE_BYTES", 2**62)
    with (
        pytest.raises(BadInput, match=f"--data-dir {tmp_path}: its disk has [0-9]+ MiB left"),
        lock_directory(tmp_path),
    ):
        pass
    assert list(tmp_path.iterdir()) == []
