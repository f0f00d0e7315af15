"""Fixtures for all tests: real servers, a bus with its own cell, a tiny model directory."""

import gc
import os
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import hypothesis
import pytest
import structlog

from shared.bus.client import Bus
from shared.text import TextModel
from tests.support.certificates import certificate
from tests.support.nats import NatsServer, new_cell, started_server
from tests.support.postgres import database, postgres, postgres_server
from tests.support.tiny_model import write_tiny_model, write_tiny_weights

# One thread per process: tests run in parallel, and threads that wait for one another waste a busy machine. Set before
# any test imports torch or LightGBM, so that both read it, and every process that a test starts inherits it.
os.environ |= {"OMP_NUM_THREADS": "1", "DILASERVE_THREADS": "1"}

# No test needs a public server. An HTTP client that reads the certificates of all authorities takes 30 ms longer.
os.environ.pop("SSL_CERT_FILE", None)
os.environ["SSL_CERT_DIR"] = os.path.dirname(__file__)

# An example's time depends on the machine's load, so it has no deadline. Each run tries the same examples, so that a
# commit either passes or fails; `--hypothesis-profile=search` tries new ones.
hypothesis.settings.register_profile("search", deadline=None)
hypothesis.settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=40)
hypothesis.settings.load_profile("repeatable")


gc.disable()  # until all modules and tests are read, which stay anyway


def pytest_collection_finish() -> None:
    """Collect garbage again, but spare the collections, which tests cause, the modules and tests that stay."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Workers cache latency profiles and the like for this run, not in the user's cache."""
    run = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        run = run.parent  # shared by all of pytest's workers
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(run / "cache"))
        yield


def use_plain_logs() -> None:
    """The tracebacks that structlog draws by default take a second each."""
    structlog.reset_defaults()
    *others, _ = structlog.get_config()["processors"]
    renderer = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[*others, renderer])


use_plain_logs()


@pytest.fixture(autouse=True)
def own_logs() -> Iterator[None]:
    """Reset the log configuration of a command that ran in this process."""
    yield
    use_plain_logs()


@pytest.fixture(autouse=True)
def own_threads() -> Iterator[None]:
    """Reset the number of threads that such a command chose."""
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """One server for the run; each test has its own cell. A test that stops its server starts its own."""
    with started_server(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[NatsServer]:
    """A server of the test alone, which may stop it."""
    with started_server(tmp_path) as server:
        yield server


@pytest.fixture
async def bus(nats_server: NatsServer) -> AsyncIterator[Bus]:
    """A bus connected to its own cell, with streams and buckets set up."""
    async with new_cell(nats_server) as connected:
        yield connected


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory without weights; see tests/support/tiny_model.py."""
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny-llada")


@pytest.fixture(scope="session")
def text(tiny_model_dir: Path) -> TextModel:
    """That of `tiny_model_dir`."""
    return TextModel(tiny_model_dir, "tiny-llada")


@pytest.fixture(scope="session")
def tiny_checkpoint_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory with random weights, for a worker to load."""
    return write_tiny_weights(write_tiny_model(tmp_path_factory.mktemp("checkpoints") / "tiny-llada"))
