"""The profile that an instance registers with: given, stored by an earlier start, or measured now."""

import hashlib
import tempfile
from collections.abc import Mapping
from pathlib import Path

import structlog
import torch

from services.worker.model.model_loading import ModelChoice, device_name
from services.worker.model.model_runner import Runner
from services.worker.model.tensor_parallel import ParallelRunner
from services.worker.profile.profiler import QUICK_PLAN, measure
from shared.errors import BadInput
from shared.profile import LatencyProfile, read_profile, write_profile

log = structlog.get_logger(__name__)

CODE = Path(__file__).parents[1]  # of the worker
DRIVER_VERSION = Path("/proc/driver/nvidia/version")


def given_profile(path: Path, tp: int) -> LatencyProfile:
    """The rows of this TP degree. Raises: BadInput if the file cannot be read or lacks such rows."""
    profile = read_profile(path).for_tp(tp)
    profile.require(tp, cached=False)
    return profile


def stored_profile(choice: ModelChoice, runner: Runner | ParallelRunner, directory: Path) -> LatencyProfile:
    """The profile that an earlier start stored in `directory`; otherwise measure and store one."""
    path = directory / f"{_key(choice, runner)}.csv"
    if path.exists():
        try:
            return read_profile(path)
        except BadInput as error:
            log.warning("stored profile not used", error=error.message)
    log.info("measuring a quick latency profile", stored=str(path))
    profile = measure(runner, choice.tp, QUICK_PLAN)
    _store(path, profile)
    return profile


def default_directory(environ: Mapping[str, str]) -> Path:
    """The folder of stored profiles in the user's cache."""
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dilaserve" / "profiles"


def _key(choice: ModelChoice, runner: Runner | ParallelRunner) -> str:
    """A hash of the facts that latencies depend on."""
    hardware = device_name(runner.device), runner.attention, str(runner.dtype)
    software = torch.__version__, torch.version.cuda, cuda_driver(), _code_hash(CODE)
    facts = (runner.config, *hardware, *software, choice.tp, choice.threads, runner.cache_tokens > 0)
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def cuda_driver() -> str | None:
    """The version of NVIDIA's driver; None without one."""
    try:
        return DRIVER_VERSION.read_text().partition("\n")[0]
    except OSError:
        return None


def _code_hash(directory: Path) -> str:
    """A hash of the Python files in a folder, as other code may have other latencies."""
    files = sorted(directory.rglob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def _store(path: Path, profile: LatencyProfile) -> None:
    """Store atomically, since other instances read and write the same file. A failure is only logged."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as directory:
            draft = Path(directory) / path.name
            write_profile(draft, profile)
            draft.replace(path)
    except OSError as error:
        log.warning("profile not stored", path=str(path), error=str(error))
