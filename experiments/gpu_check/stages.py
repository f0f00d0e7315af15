"""The stages in their order, and the process of one of them."""

import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

from experiments.gpu_check import canvases, golden, kernels, same_answer, speed
from experiments.gpu_check.findings import Findings, Setup, Skipped
from services.worker.model.model_loading import device_name


def environment(setup: Setup, found: Findings) -> None:
    """The machine, and the kernels that it has."""
    found.columns = ["fact", "value"]
    found.row("device", device_name(setup.device))
    found.row("torch", torch.__version__)
    if setup.device.type == "cuda":
        found.row("GPUs", torch.cuda.device_count())
        found.row("compute capability", ".".join(map(str, torch.cuda.get_device_capability(setup.device))))
        found.row("memory, GB", f"{torch.cuda.get_device_properties(setup.device).total_memory / 1e9:.0f}")
        found.row("CUDA", torch.version.cuda)
    for name in kernels.KERNELS:
        found.row(f"attention {name}", kernels.missing_feature(name, setup) or "can run")
    found.row("chosen", kernels.best_kernel(setup))


STAGES: dict[str, Callable[[Setup, Findings], None]] = {
    "environment": environment,
    "attention": kernels.attention,
    "grouped queries": kernels.grouped_queries,
    "canvases": canvases.attention,
    "compiled functions": canvases.compiled,
    "golden logits": golden.logits,
    "golden texts": golden.texts,
    "graphs": same_answer.graphs,
    "company": same_answer.company,
    "ranks": same_answer.ranks,
    "memory": speed.memory,
    "throughput": speed.throughput,
    "profile": speed.profile,
}


def run_stage(name: str, setup: Setup, directory: Path) -> Findings:
    """Run a stage in this process, and save its findings."""
    found, started = Findings(name), time.perf_counter()
    try:
        STAGES[name](setup, found)
    except Skipped as reason:
        found.status, found.reason = "skipped", str(reason)
    except Exception as error:
        traceback.print_exc()
        found.status, found.reason = "ERROR", (f"{type(error).__name__}: {error}".splitlines() or [""])[0][:300]
    else:
        found.status = "passed" if all(found.checks.values()) else "FAILED"
    found.seconds = time.perf_counter() - started
    found.save(directory)
    return found
