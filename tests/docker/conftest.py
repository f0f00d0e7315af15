"""A real Docker Engine; without one, the tests here are skipped with the reason."""

import io
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from experiments.docker_engine import CannotRun, docker, docker_engine, swarm

IDLE_IMAGE = "dilaserve-test/idle"


@pytest.fixture(scope="session")
def engine() -> Iterator[None]:
    try:
        with docker_engine():
            yield
    except CannotRun as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def single_node_swarm(engine: None) -> Iterator[str]:
    """The name of the Swarm's node."""
    with swarm():
        yield docker("info", "--format", "{{.Name}}").strip()


@pytest.fixture(scope="session")
def idle_image(engine: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An image that sleeps, made of this machine's `sleep` and its libraries, because no registry is needed.

    It also has `getent`, to resolve names, and `touch`, to write files."""
    tree = tmp_path_factory.mktemp("idle") / "tree.tar"
    tree.write_bytes(_tar("sleep", "getent", "touch"))
    docker("import", "--change", 'CMD ["/sleep", "infinity"]', str(tree), IDLE_IMAGE)
    yield IDLE_IMAGE
    docker("image", "rm", "--force", IDLE_IMAGE)


def _tar(*programs: str) -> bytes:
    paths = [path for program in programs if (path := shutil.which(program)) is not None]
    linked = subprocess.run(["ldd", *paths], capture_output=True, text=True, check=True).stdout
    libraries = {word for word in linked.split() if word.startswith("/") and not word.endswith(":")}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", dereference=True) as tar:
        for path in paths:
            tar.add(path, arcname=Path(path).name)
        for library in libraries:
            tar.add(library, arcname=str(Path(library)))
    return buffer.getvalue()
