"""Seconds and memory of a checkpoint with LLaDA-8B's shapes: written, loaded by the worker's own code, and decoded.

The weights are random, in bfloat16: 16 GB in sharded files in a temporary folder, which is removed at the end, also
after Ctrl-C. The run needs as much memory, and one shard. `--toy` runs a small model.

python -m experiments.large_checkpoint
"""

import dataclasses
import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, TypeVar

import torch
import typer
from safetensors.torch import save_file
from torch import Tensor

from experiments.cuda_roofline import LLADA_8B
from experiments.report import RESULTS, Report, target_list
from services.worker.cache.cache_mode import CacheMode
from services.worker.engine.offline_decoder import CaseRequest, DecodeOptions, RequestTrace, decode_together
from services.worker.model.decoder import PackedDecoder
from services.worker.model.families import ModelConfig
from services.worker.model.model_loading import CacheSize, ModelChoice, open_runner
from services.worker.model.weights import INDEX_FILE, weight_targets

T = TypeVar("T")

TOY = dataclasses.replace(
    LLADA_8B, num_layers=8, width=512, num_heads=8, num_kv_heads=8, head_dim=64, rotary_dim=64, mlp_width=1536,
    vocab_size=8192, mask_token_id=8191, eos_token_id=8190, max_length=256
)  # fmt: skip
SHARD_BYTES, TOY_SHARD_BYTES = 2 << 30, 8 << 20
OTHER_BYTES = 32 << 20  # of the allocator and the libraries while a model is loaded
PROMPT_TOKENS, BLOCK = 64, 8  # with random weights, each step unmasks one token
PROCESS = Path("/proc/self")  # of Linux


@dataclasses.dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one stage. Units: bytes of the process's memory, mapped files included."""

    seconds: float
    peak_bytes: int
    end_bytes: int


def measured(run: Callable[[], T]) -> tuple[T, Cost]:
    """Run, and measure the time and the memory."""
    (PROCESS / "clear_refs").write_text("5")  # the peak is counted from now on
    started = time.perf_counter()
    result = run()
    return result, Cost(time.perf_counter() - started, memory_bytes("VmHWM"), memory_bytes("VmRSS"))


def memory_bytes(field: str) -> int:
    lines = (PROCESS / "status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(field + ":"))


def write_checkpoint(config: ModelConfig, directory: Path, shard_bytes: int) -> int:
    """Write a random LLaDA checkpoint in bfloat16, a shard at a time. Returns: the bytes of all weights."""
    with torch.device("meta"):
        shapes = {name: targets[0].shape for name, targets in weight_targets(PackedDecoder(config)).items()}
    shards = list(_shards(shapes, shard_bytes))
    weight_map: dict[str, str] = {}
    total = 0
    for number, names in enumerate(shards, start=1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        tensors = {name: _random(shapes[name]) for name in names}
        save_file(tensors, directory / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(names, file)
        total += sum(tensor.nbytes for tensor in tensors.values())
    (directory / INDEX_FILE).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}))
    (directory / "config.json").write_text(json.dumps(published_config(config)))
    return total


def _shards(shapes: dict[str, tuple[int, ...]], shard_bytes: int) -> Iterator[list[str]]:
    """The names of each shard's parameters, in their order."""
    names: list[str] = []
    size = 0
    for name, shape in shapes.items():
        num_bytes = torch.Size(shape).numel() * torch.bfloat16.itemsize
        if names and size + num_bytes > shard_bytes:
            yield names
            names, size = [], 0
        names.append(name)
        size += num_bytes
    yield names


def _random(shape: tuple[int, ...]) -> Tensor:
    tensor = torch.empty(shape, dtype=torch.bfloat16)
    return tensor.fill_(1.0) if len(shape) == 1 else tensor.normal_(std=0.02)


def published_config(config: ModelConfig) -> dict[str, object]:
    """The `config.json` of a LLaDA model."""
    return {
        "architectures": ["LLaDAModelLM"],
        "n_layers": config.num_layers,
        "d_model": config.width,
        "n_heads": config.num_heads,
        "n_kv_heads": config.num_kv_heads,
        "mlp_hidden_size": config.mlp_width,
        "vocab_size": config.vocab_size,
        "max_sequence_length": config.max_length,
        "rope_theta": config.rope_base,
        "rms_norm_eps": config.norm_eps,
        "mask_token_id": config.mask_token_id,
        "eos_token_id": config.eos_token_id,
    }


def measure(config: ModelConfig, directory: Path, shard_bytes: int, report: Report) -> dict[str, bool]:
    """Write, load and decode; add a row for each. Returns: the targets, and whether they are reached."""
    report.add_columns("stage", "seconds", "peak memory, GB", "memory afterwards, GB")
    _load_tiny_model()
    before = memory_bytes("VmRSS")
    size, cost = measured(lambda: write_checkpoint(config, directory, shard_bytes))
    _add(report, f"write {size / 1e9:.2f} GB", cost)
    opened = open_runner(
        ModelChoice(str(directory), dtype="bfloat16"), CacheSize(requests=1, tokens=PROMPT_TOKENS + BLOCK)
    )
    runner, loading = measured(opened.__enter__)
    try:
        _add(report, "load", loading)
        case = CaseRequest("random", list(range(PROMPT_TOKENS)))
        options = DecodeOptions(CacheMode.DUAL, 0.9, BLOCK, BLOCK)

        def decode() -> list[RequestTrace]:
            return decode_together([case], runner, options)

        [trace], decoding = measured(decode)
    finally:
        opened.__exit__(None, None, None)
    _add(report, f"decode {len(trace.output_ids)} tokens in {trace.nfe} steps", decoding)
    most = max(path.stat().st_size for path in directory.glob("*.safetensors"))
    above = loading.peak_bytes - before - size
    return {
        f"loading needs at most one shard ({most / 1e9:.2f} GB) above the model: {above / 1e9:.2f} GB": (
            above <= most + OTHER_BYTES
        ),
        "every token of the block is unmasked": len(trace.output_ids) == BLOCK,
    }


def _load_tiny_model() -> None:
    """Make the libraries take the memory of a first load, which a larger model does not need again."""
    tiny = dataclasses.replace(
        TOY, num_layers=1, width=64, num_heads=1, num_kv_heads=1, mlp_width=64, vocab_size=256, mask_token_id=255,
        eos_token_id=254
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="dilaserve-checkpoint-") as name:
        write_checkpoint(tiny, Path(name), TOY_SHARD_BYTES)
        with open_runner(ModelChoice(name, dtype="bfloat16"), CacheSize(requests=1, tokens=PROMPT_TOKENS + BLOCK)):
            pass


def _add(report: Report, stage: str, cost: Cost) -> None:
    report.add_row(stage, f"{cost.seconds:.1f}", f"{cost.peak_bytes / 1e9:.2f}", f"{cost.end_bytes / 1e9:.2f}")


def main(
    *,
    toy: Annotated[bool, typer.Option("--toy", help="A small model.")] = False,
    folder: Annotated[Path | None, typer.Option(help="Parent of the temporary folder.")] = None,
    out: Annotated[Path, typer.Option(help="The report.")] = RESULTS / "large_checkpoint.md",
) -> None:
    """Print the table, and write it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # removes the folder, as Ctrl-C does
    config, shard_bytes = (TOY, TOY_SHARD_BYTES) if toy else (LLADA_8B, SHARD_BYTES)
    with tempfile.TemporaryDirectory(prefix="dilaserve-checkpoint-", dir=folder) as name:
        needed, free = _weight_bytes(config), shutil.disk_usage(name).free
        if free < 1.1 * needed:
            sys.exit(f"{name} has {free / 1e9:.0f} GB free, the checkpoint needs {needed / 1e9:.0f} GB; use --folder")
        report = Report(
            "A checkpoint of toy size" if toy else "A checkpoint with LLaDA-8B's shapes",
            "Random weights in bfloat16, loaded by the worker's code on the CPU. "
            "The memory is the process's, with mapped files.",
        )
        targets = measure(config, Path(name), shard_bytes, report)
    report.add(target_list(targets))
    report.write(out)
    sys.exit(not all(targets.values()))


def _weight_bytes(config: ModelConfig) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in PackedDecoder(config).parameters()) * torch.bfloat16.itemsize


if __name__ == "__main__":
    typer.run(main)
