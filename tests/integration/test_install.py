"""The product is installed in place; no build puts its folders into an environment as packages of their own."""

import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.support.services import ROOT

FOLDERS = ("dilaserve", "services", "shared", "simulator")
METADATA = ("LICENSE", "pyproject.toml", "README.md", "setup.py")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A copy of the files that an install reads: a build writes into its source."""
    for name in METADATA:
        shutil.copy(ROOT / name, tmp_path)
    for package in (path.parent for name in FOLDERS for path in (ROOT / name).rglob("__init__.py")):
        (tmp_path / package.relative_to(ROOT)).mkdir(parents=True, exist_ok=True)
        shutil.copy(package / "__init__.py", tmp_path / package.relative_to(ROOT))
    return tmp_path


def build(source: Path, hook: str) -> subprocess.CompletedProcess[str]:
    """Call the build backend as pip does."""
    code = f"from setuptools import build_meta; build_meta.{hook}('.')"
    return subprocess.run([sys.executable, "-c", code], cwd=source, capture_output=True, text=True, check=False)


def names_in_wheel(source: Path) -> set[str]:
    [wheel] = source.glob("*.whl")
    with ZipFile(wheel) as archive:
        return {name.partition("/")[0] for name in archive.namelist()}


def test_a_wheel_is_refused_with_the_way_to_install(source: Path) -> None:
    refused = build(source, "build_wheel")
    assert refused.returncode
    assert "pip install --editable '.[embedded]'" in refused.stderr
    assert not list(source.glob("*.whl"))


def test_an_install_in_place_finds_the_folders_where_they_are(source: Path) -> None:
    assert build(source, "build_editable").returncode == 0
    assert names_in_wheel(source).isdisjoint(FOLDERS)
    [wheel] = source.glob("*.whl")
    with ZipFile(wheel) as archive:
        found = "".join(archive.read(name).decode() for name in archive.namelist() if "editable" in name)
    assert all(str(source / name) in found for name in FOLDERS)


def test_an_image_installs_the_metadata_and_the_command_alone(source: Path) -> None:
    for name in FOLDERS:  # as in compose/Dockerfile, which copies the metadata alone
        shutil.rmtree(source / name)
    (source / "setup.py").unlink()
    assert build(source, "build_wheel").returncode == 0
    assert all(name.startswith("dilaserve-") for name in names_in_wheel(source))
