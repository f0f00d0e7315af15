"""The lock files of the images."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCKS = ROOT / "compose" / "locks"
SERVICES = ("gateway", "scheduler", "predictor", "worker", "reconfigurator")
PIN = re.compile(r"^([\w.-]+)==([^\s;]+)", re.MULTILINE)


def pins(text: str) -> dict[str, str]:
    """Version by package."""
    return dict(PIN.findall(text))


@pytest.mark.parametrize("service", SERVICES)
def test_every_package_of_an_image_has_hashes(service: str) -> None:
    text = (LOCKS / f"{service}.lock").read_text()
    entries = re.split(r"\n(?=\w)", text.strip())
    assert len(entries) == len(pins(text)) > 20
    assert [entry for entry in entries if not re.search(r" \\\n    --hash=sha256:[0-9a-f]{64}", entry)] == []


@pytest.mark.parametrize("service", SERVICES)
def test_an_image_has_the_versions_that_the_tests_use(service: str) -> None:
    tested = pins((ROOT / "requirements.lock").read_text())
    assert pins((LOCKS / f"{service}.lock").read_text()).items() <= tested.items()


@pytest.mark.parametrize("service", SERVICES)
def test_the_lock_of_an_image_has_no_torch_and_no_address(service: str) -> None:
    text = (LOCKS / f"{service}.lock").read_text()
    assert not re.search(r"^(torch|nvidia|cuda|triton)", text, re.MULTILINE)
    assert "://" not in text


def test_the_images_install_by_hash_only() -> None:
    lines = (ROOT / "compose" / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    by_hash = [line for line in lines if "service.lock" in line and "pip install" in line]
    assert len(by_hash) == 1
    assert {"--no-deps", "--only-binary", "--require-hashes"} <= set(by_hash[0].split())


@pytest.mark.parametrize("name", ["flash-attn-build", "flash-attn"])
def test_the_worker_has_flash_attn_by_a_build_argument_and_by_hash(name: str) -> None:
    """Its build needs the packages of the first lock, so these are installed before."""
    text, dockerfile = (LOCKS / f"{name}.lock").read_text(), (ROOT / "compose" / "Dockerfile").read_text()
    entries = re.split(r"\n(?=\w)", text.strip())
    assert [entry for entry in entries if not re.search(r" \\\n    --hash=sha256:[0-9a-f]{64}", entry)] == []
    assert ("flash-attn" in pins(text)) == (name == "flash-attn")
    assert not re.search(r"^(torch|nvidia|cuda|triton)", text, re.MULTILINE)
    assert "for lock in flash-attn-build.lock flash-attn.lock" in dockerfile
    assert '[ "$SERVICE" = worker ] && [ -n "$FLASH_ATTN" ]' in dockerfile
