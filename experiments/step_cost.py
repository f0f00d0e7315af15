"""The cost of a step on a GPU, counted instead of timed: operations, copies, synchronisations, bytes and FLOPs.

The worker's own runner runs batches of different lengths on torch's meta device, which computes shapes and no values,
with the kernel that CUDA has. An operation is one that torch dispatches, without views and allocations; `rms_norm` and
attention to equal numbers of heads are one each, as on CUDA, although the meta device splits them. So is a function of
the worker that is `Fused`, since torch's compiler makes one kernel of it on CUDA; a second column has the operations
without the compiler. A sort or a top-k is one operation, although it may launch several kernels. The floor of the bytes
is each weight and each key and value read once, each new key and value written once.

python -m experiments.step_cost
"""

import argparse
import csv
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from experiments.report import RESULTS, Report, target_list
from services.worker.engine.batch import Part, pack
from services.worker.engine.sequence_state import SequenceState
from services.worker.model.canvas_runner import new_runner
from services.worker.model.families import ModelConfig, parse_config
from services.worker.model.forward_batch import ForwardBatch
from services.worker.model.fused import Fused
from services.worker.model.model_runner import Runner
from services.worker.model.weights import empty_decoder

CONFIGS = Path(__file__).parents[1] / "tests" / "golden" / "real_configs.json"
MODELS = {
    "LLaDA-8B": "llada-8b-instruct",
    "Dream-7B": "dream-7b",
    "LLaDA2.0-mini": "llada2.0-mini",
    "DiffusionGemma": "diffusiongemma-26b-a4b",
}
OUTPUT, FIRST_PROMPT = 256, 512  # tokens; each request's prompt is one token longer than the last one's
COUNTS = (1, 8, 32)  # requests of a batch
MAX_OPERATIONS, MOST_WITH_EXPERTS = 20, 30  # a layer
ROWS_ONLY = (
    "index_copy_",
    "index_select",
    "embedding",
    "index",
    "tokens_of",
)  # touch as many rows as they write or return
NO_KERNEL = ("empty", "new_empty", "empty_like", "empty_strided")
ATTENTION = ("_varlen_attn", "_varlen_attn_out", "_efficient_attention_forward")
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "_grouped_mm")


@dataclass
class StepCost:
    """The cost of one step."""

    operations: int = 0
    layer_operations: int = 0  # of all layers together
    synchronisations: int = 0
    copies_in: int = 0
    kv_passes: float = 0.0  # of all layers together: reads of all keys of the batch
    bytes_moved: int = 0
    layer_bytes: int = 0  # of all layers together
    flops: int = 0


class CostCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations that are dispatched while it is active."""

    def __init__(self, cost: StepCost, batch: ForwardBatch, config: ModelConfig) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.cost, self.in_layer = cost, False
        self._batch = batch
        self._shapes = {shape.head_dim: shape for shape in map(config.attention, range(config.num_layers))}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with self:  # in inference mode, composite operations arrive whole
            parts = func.decompose(*args, **kwargs)
        if parts is not NotImplemented:
            return parts
        name = func.overloadpacket.__name__
        device = kwargs.get("device")
        if name == "_to_copy" and device is not None and torch.device(device).type == "cpu":
            self.cost.synchronisations += 1
            return torch.zeros(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        if name == "_local_scalar_dense":
            self.cost.synchronisations += 1
        out = func(*args, **kwargs)
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        made = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        if name == "_to_copy" and tensors[0].device.type == "cpu":
            self.cost.copies_in += 1
        elif not func.is_view and name not in NO_KERNEL and any(x.device.type == "meta" for x in (*tensors, *made)):
            self.count(name, tensors, made)
        return out

    def count(self, name: str, given: Sequence[Tensor], made: Sequence[Tensor]) -> None:
        cost = self.cost
        cost.operations += 1
        cost.layer_operations += self.in_layer
        if name in ATTENTION:
            q, k = given[name.endswith("out") :][:2]  # `out` comes first
            read, whole = self.keys_of(q)
            heads = 1 if name.startswith("_efficient") else k.shape[1]
            cost.kv_passes += read / whole * heads / self._shapes[q.shape[-1]].num_kv_heads
            moved = 2 * _bytes(q) + 2 * read * heads * k.shape[-1] * k.itemsize
        elif name in ROWS_ONLY:
            moved = 2 * _bytes(given[-1] if name == "index_copy_" else made[0])
        else:
            moved = sum(map(_bytes, given)) + sum(map(_bytes, made))
        cost.bytes_moved += moved
        cost.layer_bytes += moved * self.in_layer
        if name in PRODUCTS:
            left = given[1] if name in ("addmm", "baddbmm") else given[0]
            cost.flops += 2 * left.shape[-1] * made[0].numel()

    def keys_of(self, q: Tensor) -> tuple[int, int]:
        """The keys that the spans of these queries attend to, and those of all spans of the batch."""
        batch, window = self._batch, self._shapes[q.shape[-1]].window
        text, rows = batch.num_text_spans, q.shape[-3]
        own = slice(None) if rows == len(batch.tokens) else slice(text, None)
        if text and rows == batch.lengths[:text].sum():
            own = slice(text)
        read = keys_read(batch.lengths[own], batch.key_lengths[own], window)
        return read, keys_read(batch.lengths, batch.key_lengths, window)


class KernelsOfCuda(TorchFunctionMode):
    """Counts what is one kernel on CUDA, although the meta device splits it."""

    def __init__(self, counter: CostCounter, requests: int) -> None:
        super().__init__()
        self._counter, self._requests = counter, requests

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        if func is torch.nn.functional.scaled_dot_product_attention:
            query, key = given[:2]
            self._counter.cost.kv_passes += 1 / self._requests
            self._counter.cost.flops += 4 * query.numel() * key.shape[-2]
        elif func is not torch.nn.functional.rms_norm:
            return func(*args, **kwargs)
        with _disable_current_modes():
            out = torch.empty(args[0].shape, dtype=args[0].dtype, device="meta")
        self._counter.count(func.__name__, given, [out])
        return out


def new_batch(config: ModelConfig, cached: int, recomputed: int) -> ForwardBatch:
    """A step of `cached` requests in cache steps and `recomputed` ones that compute their prompts, too."""
    parts, kv_start, length = [], 0, config.block_length or 32
    for i in range(cached + recomputed):
        prompt = FIRST_PROMPT + i
        whole = prompt + OUTPUT + (-(prompt + OUTPUT) % length if config.is_aligned else 0)
        canvas = np.full(whole, config.mask_token_id, dtype=np.int32)
        canvas[:prompt] = 0
        known = np.full(whole - prompt, np.nan, dtype=np.float32)
        sequence = SequenceState(i, prompt, length, canvas, known, kv_start=kv_start)
        sequence.is_aligned, sequence.is_exact, sequence.rules = (
            config.is_aligned,
            config.is_block_causal,
            config.canvas,
        )
        sequence.begin_draft(0, config.vocab_size)
        kv_start += whole
        start, stop = sequence.block_range(0)
        if i >= cached:
            start, stop = 0, stop if config.is_block_causal else whole
        parts.append(Part(sequence, 1, 0, start, stop))
    return pack(sorted(parts, key=lambda part: part.sort_key), config)


def step_cost(config: ModelConfig, runner: Runner, batch: ForwardBatch, *, is_compiled: bool = True) -> StepCost:
    for _ in range(2):  # the first run computes the rotations of all positions
        cost = StepCost()
        counter = CostCounter(cost, batch, config)
        compiled = compiled_functions(counter) if is_compiled else nullcontext()
        with counted_layers(runner, counter), KernelsOfCuda(counter, len(batch.lengths)), compiled, counter:
            runner.run(batch)
    return cost


@contextmanager
def compiled_functions(counter: CostCounter) -> Iterator[None]:
    """Count each call of a `Fused` function as one operation."""

    def call(fused: Fused[..., Any], *args: Any) -> Any:
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            out = fused.function(*args)
        given, made = ([leaf for leaf in tree_leaves(x) if isinstance(leaf, Tensor)] for x in (args, out))
        counter.count(fused.function.__name__, given, made)
        return out

    with patch.object(Fused, "__call__", call):
        yield


@contextmanager
def counted_layers(runner: Runner, counter: CostCounter) -> Iterator[None]:
    """Have the counter know which operations belong to layers."""

    def enter(*_: Any) -> None:
        counter.in_layer = True

    def leave(*_: Any) -> None:
        counter.in_layer = False

    layers = runner.decoder.layers
    hooks = [layer.register_forward_pre_hook(enter) for layer in layers]
    hooks += [layer.register_forward_hook(leave) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def keys_read(lengths: Any, key_lengths: Any, window: int) -> int:
    """The keys that the spans of a batch attend to."""
    skipped = np.maximum(key_lengths - lengths - (window - 1), 0) if window else 0
    return int((key_lengths - skipped).sum())


def floor_bytes(runner: Runner, batch: ForwardBatch) -> int:
    """The fewest bytes of a step: each weight and each key and value read once, the fed tokens' ones written once."""
    config, parameters = runner.config, runner.decoder.named_parameters()
    total = sum(_bytes(p) for name, p in parameters if config.tied_head or not name.startswith("embed"))
    for layer in range(config.num_layers):
        shape = config.attention(layer)
        keys = keys_read(batch.lengths, batch.key_lengths, shape.window) + len(batch.tokens)
        total += 2 * 2 * shape.num_kv_heads * shape.head_dim * keys
    return total


def _bytes(x: Tensor) -> int:
    return x.numel() * x.itemsize


KINDS: dict[str, Callable[[int], tuple[int, int]]] = {
    "cache": lambda count: (count, 0),
    "recompute": lambda count: (0, count),
    "mixed": lambda count: (count - count // 4, count // 4) if count > 1 else (1, 0),
}
COLUMNS = (
    "model", "step", "requests", "operations a layer", "without the compiler", "others", "copies in",
    "synchronisations", "KV passes", "GB", "in layers", "times the floor", "TFLOP",
)  # fmt: skip


def main() -> None:
    """Count the steps of all models, and write experiments/results/step_cost.*."""
    argparse.ArgumentParser(description=main.__doc__).parse_args()
    lengths = f"prompts of {FIRST_PROMPT} tokens on, each one longer than the last, output {OUTPUT}, blocks of 32"
    report = Report(
        "The cost of a step, counted",
        f"{lengths}, of DiffusionGemma canvases of 256; a quarter of a mixed batch recomputes.",
    )
    report.add_columns(*COLUMNS)
    rows: list[tuple[object, ...]] = []
    targets: dict[str, bool] = {}
    for name, key in MODELS.items():
        config = parse_config(json.loads(CONFIGS.read_text())[key]["config"])
        decoder = empty_decoder(config, torch.bfloat16, "meta")
        runner = new_runner(decoder, cache_tokens=COUNTS[-1] * (FIRST_PROMPT + 2 * COUNTS[-1] + OUTPUT))
        most = MOST_WITH_EXPERTS if config.experts else MAX_OPERATIONS
        for kind, split in KINDS.items():
            for count in COUNTS:
                batch = new_batch(config, *split(count))
                cost = step_cost(config, runner, batch)
                a_layer = cost.layer_operations / config.num_layers
                plain = step_cost(config, runner, batch, is_compiled=False).layer_operations / config.num_layers
                passes = cost.kv_passes / config.num_layers
                rows.append(
                    (
                        name, kind, count, f"{a_layer:.1f}", f"{plain:.1f}",
                        cost.operations - cost.layer_operations, cost.copies_in, cost.synchronisations,
                        f"{passes:.1f}", f"{cost.bytes_moved / 1e9:.1f}", f"{cost.layer_bytes / 1e9:.1f}",
                        f"{cost.bytes_moved / floor_bytes(runner, batch):.2f}", f"{cost.flops / 1e12:.2f}",
                    )
                )  # fmt: skip
                report.add_row(*rows[-1])
                if kind == "mixed" and count == COUNTS[-1]:
                    at_most = f"{name}: at most {most} operations a layer in a mixed batch of {count}"
                    targets[at_most] = a_layer <= most
                    targets[f"{name}: one synchronisation for each step"] = cost.synchronisations == 1
                    targets[f"{name}: one pass over the keys and values"] = round(passes, 1) == 1
    report.add(target_list(targets))
    report.write(RESULTS / "step_cost.md")
    with (RESULTS / "step_cost.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])


if __name__ == "__main__":
    main()
