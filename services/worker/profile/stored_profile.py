"""The profile that an instance registers with: a given one, one measured at an earlier start, or a quick one now."""

import hashlib
import tempfile
from collections.abc import Mapping
from pathlib import Path

import structlog

from services.worker.model.attention import backend
from services.worker.model.model_loading import ModelChoice, device_name
from services.worker.model.model_runner import Runner
from services.worker.model.tensor_parallel import ParallelRunner
from services.worker.profile.profiler import QUICK_PLAN, measure
from shared.errors import BadInput
from shared.messages.steps import StepKind
from shared.profile import LatencyProfile, read_profile, write_profile

log = structlog.get_logger(__name__)


def given_profile(path: Path, tp: int) -> LatencyProfile:
    """The rows of this TP degree. Raises: BadInput if the file cannot be read or has none."""
    profile = read_profile(path).for_tp(tp)
    profile.latency_s(tp, 1, StepKind.RECOMPUTE)  # raises if it has no such rows
    return profile


def stored_profile(choice: ModelChoice, runner: Runner | ParallelRunner, cache: Path) -> LatencyProfile:
    """The one kept under `cache` by an earlier start; else measured now, and kept."""
    path = cache / f"{_key(choice, runner)}.csv"
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
    """Where the user's caches are kept."""
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dilaserve" / "profiles"


def _key(choice: ModelChoice, runner: Runner | ParallelRunner) -> str:
    """What a latency depends on."""
    computes = device_name(runner.device), backend(runner.device, runner.dtype), str(runner.dtype)
    facts = (runner.config, *computes, choice.tp, choice.threads, runner.cache_tokens > 0)
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def _store(path: Path, profile: LatencyProfile) -> None:
    """In one piece, since another instance may read or write it at this moment; not worth failing for."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as directory:
            draft = Path(directory) / path.name
            write_profile(draft, profile)
            draft.replace(path)
    except OSError as error:
        log.warning("profile not stored", path=str(path), error=str(error))
