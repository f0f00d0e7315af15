"""From settings to a model that runs: on one device, or shared out over the ranks of an instance."""

import contextlib
import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog
import torch

from services.worker.cache.kv_store import tokens_that_fit
from services.worker.model.attention import backend
from services.worker.model.checkpoint import check_weights, load
from services.worker.model.config import read_config
from services.worker.model.decoder import WHOLE, PackedDecoder, Shard
from services.worker.model.model_runner import Runner
from services.worker.model.tensor_parallel import ParallelRunner, RankGroup, parallel_runner
from shared.cpu import num_cores
from shared.errors import BadInput
from shared.model_files import find_model

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class CacheSize:
    """How many tokens the cache holds: `tokens`, or with 0 as the free memory allows, but no more than so many
    requests of the longest can fill. No requests: no cache."""

    requests: int
    tokens: int = 0


NO_CACHE = CacheSize(requests=0)


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """Which model to run, and where. As in the settings: device and dtype may be auto, threads 0."""

    model: str  # a directory or a hub id
    device: str = "cpu"
    dtype: str = "auto"
    tp: int = 1
    threads: int = 0  # of each rank; 0: an equal share of the cores that the process may use
    gpus: tuple[int, ...] = ()  # the machine's, one a rank; none: the first ones


@contextmanager
def open_runner(choice: ModelChoice, room: CacheSize) -> Iterator[Runner | ParallelRunner]:
    """Load the model, and end its ranks at the end. Raises: BadInput, one line, if it cannot be run."""
    directory, devices = check_model(choice)
    threads = choice.threads or max(1, num_cores() // choice.tp)
    load_rank = partial(_load_rank, directory, choose_dtype(choice.dtype, devices[0]), threads, room)
    if choice.tp == 1:
        runner = load_rank(None, devices[0])
        _say(choice, runner)
        yield runner
        return
    with parallel_runner(devices, load_rank) as ranks:
        _say(choice, ranks)
        yield ranks


def check_model(choice: ModelChoice) -> tuple[Path, list[torch.device]]:
    """The model's directory, and the device of each rank. Raises: BadInput for what can be refused before anything is
    loaded."""
    directory, device = find_model(choice.model), choose_device(choice.device)
    try:
        Shard(0, choice.tp).check(read_config(directory))
        check_weights(directory)  # here, since ranks could not say it in one voice
    except ValueError as error:
        raise BadInput(str(error), "model") from None
    if device.type == "cuda" and torch.cuda.device_count() < choice.tp:
        count = torch.cuda.device_count()
        raise BadInput(f"tensor-parallel degree {choice.tp}, but there are {count} CUDA devices", "tp")
    return directory, [device] * choice.tp if device.type == "cpu" else _cuda_devices(choice)


def choose_device(wanted: str) -> torch.device:
    """Raises: BadInput if a CUDA device is wanted and there is none."""
    has_cuda = torch.cuda.is_available()
    if wanted == "cuda" and not has_cuda:
        raise BadInput("device=cuda, but torch sees no CUDA device here; use cpu or auto", "device")
    return torch.device("cuda" if has_cuda and wanted != "cpu" else "cpu")


def _cuda_devices(choice: ModelChoice) -> list[torch.device]:
    """Its GPUs by their numbers where all of the machine's are seen; a container sees its own alone, from 0 on."""
    seen = len(choice.gpus) == choice.tp and max(choice.gpus) < torch.cuda.device_count()
    return [torch.device("cuda", gpu) for gpu in (choice.gpus if seen else range(choice.tp))]


def device_name(device: torch.device) -> str:
    """What latencies are kept by: the GPU's type, or cpu."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def choose_dtype(wanted: str, device: torch.device) -> torch.dtype:
    """auto: bfloat16 on CUDA and on a CPU that computes in it, else float32."""
    if wanted == "auto":
        can = torch.cpu.get_capabilities()
        fast = device.type == "cuda" or can.get("avx512_bf16") or can.get("amx_bf16")
        return torch.bfloat16 if fast else torch.float32
    return torch.bfloat16 if wanted == "bfloat16" else torch.float32


def _load_rank(
    directory: Path,
    dtype: torch.dtype,
    threads: int,
    room: CacheSize,
    group: RankGroup | None,
    device: torch.device | None = None,
) -> Runner:
    torch.set_num_threads(threads)
    _keep_freed_memory()
    try:
        if group is None:
            assert device is not None, "without a group the device is given"
            decoder = load(directory, dtype, device, WHOLE)
        else:
            decoder = load(directory, dtype, group.device, group.shard, group.sum)
    except torch.OutOfMemoryError:
        raise BadInput("the model does not fit in the device's memory", "model") from None
    except ValueError as error:
        raise BadInput(str(error), "model") from None
    slots = _num_cache_tokens(room, decoder, group)
    try:
        return Runner(decoder, slots, group)
    except RuntimeError:  # without enough memory torch raises just this on a CPU
        raise BadInput(f"no memory for a cache of {slots} tokens", "cache_tokens") from None


def _keep_freed_memory() -> None:
    """Let glibc reuse what a step frees, not hand it back: the next step's fresh pages would cost 5 to 8 % of it."""
    m_trim_threshold, m_mmap_threshold = -1, -3
    with contextlib.suppress(OSError, AttributeError):  # another C library
        libc = ctypes.CDLL(None)
        libc.mallopt(m_mmap_threshold, 32 << 20)  # the most it takes
        libc.mallopt(m_trim_threshold, (1 << 31) - 1)


def _num_cache_tokens(room: CacheSize, decoder: PackedDecoder, group: RankGroup | None) -> int:
    """The same on every rank."""
    longest = decoder.config.max_length
    if room.tokens or not room.requests:
        return room.tokens
    fit = tokens_that_fit(decoder)
    slots = min(fit if group is None else group.least(fit), room.requests * longest)
    if slots < longest:
        raise BadInput(
            f"the free memory holds a cache of {slots} tokens; one request may have {longest}", "cache_tokens"
        )
    return slots


def _say(choice: ModelChoice, runner: Runner | ParallelRunner) -> None:
    log.info(
        "model loaded",
        model=choice.model,
        device=str(runner.device),
        dtype=str(runner.dtype).removeprefix("torch."),
        tp=choice.tp,
        attention=backend(runner.device, runner.dtype),
        cache_tokens=runner.cache_tokens,
    )
