"""The wheel has all that the program needs, and serves outside of the repository."""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import httpx
import pytest

from dilaserve.commands.up import QUESTION
from tests.support.services import ROOT
from tests.support.stack import new_data_dir, running_stack

pytestmark = pytest.mark.slow

PACKAGES = ("dilaserve", "models", "services", "shared", "simulator")
METADATA = ("LICENSE", "README.md", "pyproject.toml")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of the wheel, which is built from a copy, since a build writes into its source."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("installed")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in METADATA:
        shutil.copy(ROOT / name, source)
    pip("wheel", "--no-build-isolation", "--wheel-dir", source, source)
    [wheel] = source.glob("dilaserve-*.whl")
    pip("install", "--target", target, wheel)
    return target


def pip(*arguments: object) -> None:
    command = [sys.executable, "-m", "pip", *map(str, arguments), "--quiet", "--no-deps", "--no-index"]
    subprocess.run(command, check=True)


def files(root: Path) -> set[str]:
    """The files of the packages, without their pages."""
    found = (path for name in PACKAGES for path in (root / name).rglob("*") if path.is_file())
    pages = {
        f"{folder}/README.md"
        for folder in ("simulator", *(f"services/{p.name}" for p in (ROOT / "services").iterdir()))
    }
    return {str(path.relative_to(root)) for path in found if path.suffix != ".pyc"} - pages


def test_it_has_every_file_of_the_packages(installed: Path) -> None:
    assert files(ROOT) - files(installed) == set()
    assert {"models/demo/model.safetensors", "services/gateway/console/static/index.html"} <= files(installed)


def test_it_serves_the_demo_model_outside_of_the_repository(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(installed))
    assert run(tmp_path, "-c", "import dilaserve; print(dilaserve.__file__)").startswith(str(installed))
    assert run(tmp_path, "-m", "dilaserve", "--version") == f"dilaserve {version('dilaserve')}\n"
    with (
        new_data_dir() as data_dir,
        running_stack(installed / "models/demo", data_dir, "--instances", "1x1", directory=tmp_path) as stack,
    ):
        body = {"model": "demo", "messages": [{"role": "user", "content": QUESTION}]}
        reply = httpx.post(f"{stack.url}/v1/chat/completions", json=body, timeout=60).raise_for_status().json()
        assert "The answer is 16." in reply["choices"][0]["message"]["content"]
        assert "<title>" in httpx.get(f"{stack.url}/").raise_for_status().text
        assert stack.stop() == 0


def run(directory: Path, *arguments: str) -> str:
    command: Sequence[str] = [sys.executable, *arguments]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, check=True).stdout
