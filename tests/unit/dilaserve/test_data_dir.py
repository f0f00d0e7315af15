"""The file with the addresses of a stack, and their report by `dilaserve doctor`."""

import stat
from pathlib import Path

import msgspec
import pytest

from dilaserve.stack import checks, data_dir
from dilaserve.stack.data_dir import Addresses, find_addresses, lock_directory, read_addresses, write_addresses
from dilaserve.stack.up_options import DEMO_MODEL
from shared.bus.users import BusUser
from shared.errors import BadInput

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
