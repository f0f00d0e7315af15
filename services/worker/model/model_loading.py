"""Loads a model from settings: on one device, or split over the ranks of an instance. On CUDA, the KV cache gets the
memory that the largest batch leaves."""

import ctypes
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import structlog
import torch

from services.worker.cache.kv_store import tokens_that_fit
from services.worker.model.attention import kernel_name
from services.worker.model.canvas_runner import new_runner
from services.worker.model.cpu_layers import pack_for_cpu
from services.worker.model.decoder import PackedDecoder, Shard
from services.worker.model.families import ModelConfig, read_config
from services.worker.model.forward_batch import ForwardBatch, sampling_table
from services.worker.model.model_runner import Runner
from services.worker.model.tensor_parallel import ParallelRunner, RankGroup, parallel_runner
from services.worker.model.weights import check_weights, load
from shared.cpu import has_invariant_bfloat16, num_cores
from shared.errors import BadInput
from shared.messages.requests import DEFAULT_BLOCK_LENGTH, Sampling
from shared.model_files import find_model

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class CacheSize:
    """The size of the KV cache: `tokens`, or if 0 the free memory, up to `requests` of the maximum length.

    On CUDA, the free memory is that beside an iteration of `batch_tokens`.
    """

    requests: int  # 0: no cache
    tokens: int = 0
    batch_tokens: int = 8192


NO_CACHE = CacheSize(requests=0)


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """The model to run, and its devices, as in the settings."""

    model: str  # a directory or a hub id
    device: str = "cpu"  # or cuda, or auto
    dtype: str = "auto"  # or float32, or bfloat16
    tp: int = 1
    threads: int = 0  # per rank; 0: an equal share of the cores that the process may use
    gpus: tuple[int, ...] = ()  # of the machine, one per rank; empty: the first ones
    attention: str = "auto"  # or torch, flash-attn, fallback


@contextmanager
def open_runner(choice: ModelChoice, cache_size: CacheSize) -> Iterator[Runner | ParallelRunner]:
    """Load the model, and end its ranks on exit. Raises: BadInput, one line, if it cannot run."""
    directory, devices = check_model(choice)
    threads = choice.threads or max(1, num_cores() // choice.tp)
    dtype = choose_dtype(choice.dtype, devices[0])
    try:
        has_text_spans = read_config(directory).has_text_spans
        kernel = kernel_name(choice.attention, devices[0], dtype, has_text_spans=has_text_spans)
    except ValueError as error:
        raise BadInput(str(error), "attention") from None
    load_rank = partial(_load_rank, directory, dtype, kernel, threads, cache_size)
    opened: AbstractContextManager[Runner | ParallelRunner] = (
        nullcontext(load_rank(None, devices[0])) if choice.tp == 1 else parallel_runner(devices, load_rank)
    )
    with opened as runner:
        log.info(
            "model loaded",
            model=choice.model,
            device=str(runner.device),
            dtype=str(runner.dtype).removeprefix("torch."),
            tp=choice.tp,
            attention=runner.attention,
            cache_tokens=runner.cache_tokens,
        )
        yield runner


def check_model(choice: ModelChoice) -> tuple[Path, list[torch.device]]:
    """Check the model before loading it. Returns: its directory, and the device of each rank. Raises: BadInput."""
    directory, device = find_model(choice.model), choose_device(choice.device)
    Shard(0, choice.tp).check(read_config(directory))
    check_weights(directory)  # before the ranks start, so that an error is reported once
    if device.type == "cuda" and torch.cuda.device_count() < choice.tp:
        count = torch.cuda.device_count()
        raise BadInput(f"tensor-parallel degree {choice.tp}, but there are {count} CUDA devices", "tp")
    return directory, [device] * choice.tp if device.type == "cpu" else _cuda_devices(choice)


def choose_device(device: str) -> torch.device:
    """The device of a setting. Raises: BadInput if it is cuda and there is no CUDA device."""
    has_cuda = torch.cuda.is_available()
    if device == "cuda" and not has_cuda:
        raise BadInput("device=cuda, but torch sees no CUDA device here; use cpu or auto", "device")
    return torch.device("cuda" if has_cuda and device != "cpu" else "cpu")


def _cuda_devices(choice: ModelChoice) -> list[torch.device]:
    """The instance's GPUs by number, or from 0 on in a container, which sees only its own."""
    are_visible = len(choice.gpus) == choice.tp and max(choice.gpus) < torch.cuda.device_count()
    return [torch.device("cuda", gpu) for gpu in (choice.gpus if are_visible else range(choice.tp))]


def device_name(device: torch.device) -> str:
    """The device's name in latency profiles: the GPU's type, or cpu."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def choose_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """The dtype of a setting. auto: bfloat16 on CUDA; on a CPU the faster one in which a request's text does not depend
    on its batch."""
    if dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" or has_invariant_bfloat16() else torch.float32
    return torch.bfloat16 if dtype == "bfloat16" else torch.float32


def _load_rank(
    directory: Path,
    dtype: torch.dtype,
    kernel: str,
    threads: int,
    cache_size: CacheSize,
    group: RankGroup | None,
    device: torch.device | None = None,
) -> Runner:
    torch.set_num_threads(threads)
    _keep_freed_memory()
    try:
        if group is None:
            assert device is not None, "a single rank gets its device as an argument"
            decoder = load(directory, dtype, device)
        else:
            decoder = load(directory, dtype, group.device, group.shard, group.sum)
    except torch.OutOfMemoryError:
        raise BadInput("the model does not fit in the device's memory", "model") from None
    pack_for_cpu(decoder)
    cache_tokens = _num_cache_tokens(cache_size, decoder, group, kernel)
    try:
        return new_runner(decoder, cache_tokens, group.gather if group else None, kernel)
    except RuntimeError as error:  # torch's error for too little memory on a CPU
        if decoder.embed.weight.device.type != "cpu" and not isinstance(error, torch.OutOfMemoryError):
            raise
        raise BadInput(f"no memory for a cache of {cache_tokens} tokens", "cache_tokens") from None


def _keep_freed_memory() -> None:
    """Let glibc reuse the memory that a step frees. Returning it to the system costs 5 to 8 % of a step's time."""
    m_trim_threshold, m_mmap_threshold = -1, -3
    with suppress(OSError, AttributeError):  # another C library
        libc = ctypes.CDLL(None)
        libc.mallopt(m_mmap_threshold, 32 << 20)  # its maximum
        libc.mallopt(m_trim_threshold, (1 << 31) - 1)


def _num_cache_tokens(size: CacheSize, decoder: PackedDecoder, group: RankGroup | None, kernel: str = "auto") -> int:
    """The capacity of the cache, the same on every rank."""
    max_length = decoder.config.max_length
    if size.tokens or not size.requests:
        return size.tokens
    fit = tokens_that_fit(decoder.kv_shape, _forward_bytes(size, decoder, group, kernel), decoder.shard.size)
    tokens = min(fit if group is None else group.min(fit), size.requests * max_length)
    if tokens < max_length:
        message = f"the free memory holds a cache of {tokens} tokens; one request may have {max_length}"
        raise BadInput(message, "cache_tokens")
    return tokens


def _forward_bytes(size: CacheSize, decoder: PackedDecoder, group: RankGroup | None, kernel: str) -> int:
    """The memory of the largest iteration, which the cache must leave free; on a CPU, it has a share of its own."""
    if decoder.embed.weight.device.type != "cuda":
        return 0
    runner = new_runner(decoder, 0, group.gather if group else None, kernel)
    try:
        return forward_bytes(runner, largest_batch(decoder.config, size.batch_tokens, size.requests), group)
    except torch.OutOfMemoryError:
        message = f"an iteration of {size.batch_tokens} tokens does not fit in the device's memory beside the model"
        raise BadInput(message, "max_batch_tokens") from None


def largest_batch(config: ModelConfig, tokens: int, requests: int) -> ForwardBatch:
    """Recompute steps of up to this many tokens and requests, all drawn from truncated distributions."""
    count = max(1, min(requests, tokens // 2))
    length = min(config.max_length, max(2, tokens // count))
    block = config.block_length or min(DEFAULT_BLOCK_LENGTH, length - 1)
    if config.is_block_causal:
        length = max(1, length // block) * block
    span = block if config.is_block_causal else length  # tokens that attend to the same keys
    fed, request = np.arange(count * length).reshape(count, length), np.arange(count)
    last_block = fed[:, -block:].flatten()
    batch = ForwardBatch(
        tokens=np.full(count * length, config.mask_token_id),
        positions=fed.flatten() % length,
        lengths=np.full(count * length // span, span),
        key_starts=np.repeat(request * length, length // span),
        key_lengths=np.tile(np.arange(span, length + 1, span), count),
        counts=np.full(count, block),
        num_recompute=count,
        candidates=last_block % length,
        rows=last_block,
        current=np.full(count * block, config.mask_token_id),
        limits=np.ones(count * block),
        sampling=sampling_table([Sampling(temperature=1.0, top_p=0.9)] * count),
        seeds=request,
        steps=request,
    )
    return _canvases(batch, count, block) if config.canvas else batch


def _canvases(batch: ForwardBatch, count: int, block: int) -> ForwardBatch:
    """The batch of a model that denoises canvases: their tokens last, with keys of their own, as there is no cache."""
    num_text = len(batch.tokens) - count * block
    own = num_text + block * np.arange(count)
    return replace(
        batch,
        tokens=np.zeros_like(batch.tokens),
        key_starts=np.append(np.zeros(len(batch.lengths) - count, dtype=np.int64), own),
        key_lengths=np.append(batch.lengths[: len(batch.lengths) - count], np.full(count, block)),
        rows=num_text + np.arange(count * block),
        num_text_spans=len(batch.lengths) - count,
    )


def forward_bytes(runner: Runner, batch: ForwardBatch, group: RankGroup | None) -> int:
    """The device's memory that a forward needs while it runs. CUDA only. Raises: torch.OutOfMemoryError."""
    torch.cuda.reset_peak_memory_stats(runner.device)
    before = torch.cuda.memory_allocated(runner.device)
    if group is None:
        runner.run(batch)
    else:
        group.run(runner, batch)
    return torch.cuda.max_memory_allocated(runner.device) - before
