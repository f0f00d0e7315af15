"""The cost of a step on a GPU, counted instead of timed: operations, copies, synchronisations, bytes and FLOPs.

The worker's own runner runs batches of different lengths on torch's meta device, which computes shapes and no values,
with the kernel that CUDA has. An operation is one that torch dispatches, without views; `rms_norm` is one, as on CUDA,
although the meta device splits it. The floor of the bytes is each weight and each key and value read once, each new key
and value written once.

python -m experiments.step_cost
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from experiments.cuda_roofline import LLADA_8B
from experiments.report import RESULTS, Report, target_list
from services.worker.engine.batch import Part, pack
from services.worker.engine.sequence_state import SequenceState
from services.worker.model.decoder import PackedDecoder
from services.worker.model.families import ModelConfig
from services.worker.model.model_runner import Runner
from services.worker.model.weights import empty_decoder

DREAM_7B = ModelConfig(
    family="dream",
    num_layers=28,
    width=3584,
    num_heads=28,
    num_kv_heads=4,
    head_dim=128,
    rotary_dim=128,
    mlp_width=18944,
    vocab_size=152064,
    rope_base=1_000_000.0,
    norm_eps=1e-6,
    qkv_bias=True,
    shifted_logits=True,
    confidence_at_temperature=True,
    mask_token_id=151666,
    eos_token_id=151643,
    max_length=2048,
)
MODELS = {"LLaDA-8B": LLADA_8B, "Dream-7B": DREAM_7B}
BLOCK, OUTPUT, FIRST_PROMPT = 32, 256, 512  # tokens; each request's prompt is one token longer than the last one's
COUNTS = (1, 8, 32)  # requests of a batch
MAX_OPERATIONS_A_LAYER = 20
ROWS_ONLY = ("index_copy_", "index_select", "embedding", "index")  # touch as many rows as they write or return


@dataclass
class StepCost:
    """The cost of one step."""

    operations: Counter[str] = field(default_factory=Counter)
    layer_operations: Counter[str] = field(default_factory=Counter)  # of all layers together
    synchronisations: int = 0
    copies_in: int = 0
    kv_passes: int = 0  # of all layers together: operations that read all keys of the batch
    bytes_moved: int = 0
    flops: int = 0


class CostCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations that are dispatched while it is active."""

    def __init__(self, cost: StepCost, kv_rows: int) -> None:
        """`kv_rows`: the keys of all requests of the batch."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.cost = cost
        self.in_layer = False
        self._kv_rows = kv_rows

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
        if name == "_to_copy" and tensors[0].device.type == "cpu":
            self.cost.copies_in += 1
        elif not func.is_view and any(x.device.type == "meta" for x in (*tensors, *tree_leaves(out)) if x is not None):
            self.count(name, tensors, [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)])
        return out

    def count(self, name: str, given: Sequence[Tensor], made: Sequence[Tensor]) -> None:
        cost = self.cost
        cost.operations[name] += 1
        if self.in_layer:
            cost.layer_operations[name] += 1
        if "varlen" in name:
            q, k = given[0], given[1]
            cost.kv_passes += 1
            cost.bytes_moved += 2 * _bytes(q) + 2 * self._kv_rows * prod(k.shape[1:]) * k.itemsize
        elif name in ROWS_ONLY:
            moved = given[-1] if name == "index_copy_" else made[0]
            cost.bytes_moved += 2 * _bytes(moved)
        else:
            cost.bytes_moved += sum(map(_bytes, given)) + sum(map(_bytes, made))
        if name in ("mm", "addmm"):
            left, right = given[-2:]
            cost.flops += 2 * left.shape[0] * left.shape[1] * right.shape[1]


class RMSNormAsOne(TorchFunctionMode):
    """Counts `rms_norm` as the one kernel that it is on CUDA."""

    def __init__(self, counter: CostCounter) -> None:
        super().__init__()
        self._counter = counter

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not torch.nn.functional.rms_norm:
            return func(*args, **kwargs)
        x, weight = args[0], kwargs["weight"]
        with _disable_current_modes():
            out = torch.empty_like(x)
        self._counter.count("rms_norm", [x, weight], [out])
        return out


def step_cost(config: ModelConfig, runner: Runner, cached: int, recomputed: int) -> StepCost:
    """The cost of a step of `cached` requests in cache steps and `recomputed` ones that recompute."""
    parts, start = [], 0
    for i in range(cached + recomputed):
        prompt = FIRST_PROMPT + i
        canvas = np.full(prompt + OUTPUT, config.mask_token_id, dtype=np.int32)
        canvas[:prompt] = 0
        known = np.full(OUTPUT, np.nan, dtype=np.float32)
        sequence = SequenceState(i, prompt, BLOCK, canvas, known, 0.0, 0, kv_start=start)
        start += len(canvas)
        whole = i >= cached
        parts.append(Part(sequence, 1, 0, *((0, len(canvas)) if whole else sequence.block_range(0))))
    batch = pack(sorted(parts, key=lambda part: part.sort_key), config)
    cost = StepCost()
    for _ in range(2):  # the first run computes the rotations of all positions
        cost = StepCost()
        counter = CostCounter(cost, int(batch.key_lengths.sum()))
        with counted_layers(runner, counter), RMSNormAsOne(counter), counter:
            runner.run(batch)
    return cost


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


def floor_bytes(decoder: PackedDecoder, fed: int, keys: int) -> int:
    """The fewest bytes of a step: each weight and each key and value read once, the fed tokens' ones written once."""
    config = decoder.config
    weights = sum(p.numel() for name, p in decoder.named_parameters() if not name.startswith("embed"))
    kv = 2 * config.num_layers * config.num_kv_heads * config.head_dim
    return 2 * (weights + kv * (keys + fed))


def _bytes(x: Tensor) -> int:
    return x.numel() * x.itemsize


def runner_of(config: ModelConfig) -> Runner:
    decoder = empty_decoder(config, torch.bfloat16, "meta")
    return Runner(decoder, cache_tokens=COUNTS[-1] * (FIRST_PROMPT + COUNTS[-1] + OUTPUT))


KINDS: dict[str, Callable[[int], tuple[int, int]]] = {
    "cache": lambda count: (count, 0),
    "recompute": lambda count: (0, count),
    "mixed": lambda count: (count - count // 4, count // 4) if count > 1 else (1, 0),
}


def main() -> None:
    """Count the steps of both models, and write experiments/results/step_cost.*."""
    lengths = f"prompts of {FIRST_PROMPT} tokens on, each one longer than the last, output {OUTPUT}, block {BLOCK}"
    report = Report("The cost of a step, counted", f"{lengths}; a quarter of a mixed batch recomputes.")
    report.add_columns(
        "model", "step", "requests", "operations a layer", "others", "copies in", "synchronisations", "KV passes",
        "GB", "times the floor", "TFLOP"
    )  # fmt: skip
    targets: dict[str, bool] = {}
    for name, config in MODELS.items():
        runner = runner_of(config)
        for kind, split in KINDS.items():
            for count in COUNTS:
                cached, recomputed = split(count)
                cost = step_cost(config, runner, cached, recomputed)
                in_layers = cost.layer_operations.total()
                a_layer = in_layers / config.num_layers
                passes = cost.kv_passes / config.num_layers
                keys = sum(FIRST_PROMPT + i + OUTPUT for i in range(count))
                fed = cached * BLOCK + sum(FIRST_PROMPT + i + OUTPUT for i in range(cached, count))
                times = cost.bytes_moved / floor_bytes(runner.decoder, fed, keys)
                report.add_row(
                    name, kind, count, f"{a_layer:.1f}", cost.operations.total() - in_layers, cost.copies_in,
                    cost.synchronisations, f"{passes:.0f}", f"{cost.bytes_moved / 1e9:.1f}", f"{times:.2f}",
                    f"{cost.flops / 1e12:.2f}"
                )  # fmt: skip
                if kind == "mixed" and count == COUNTS[-1]:
                    targets[
                        f"{name}: at most {MAX_OPERATIONS_A_LAYER} operations a layer in a mixed batch of {count}"
                    ] = a_layer <= MAX_OPERATIONS_A_LAYER
                    targets[f"{name}: one synchronisation for each step"] = cost.synchronisations == 1
                    targets[f"{name}: one pass over the keys and values"] = passes == 1
    report.add(target_list(targets))
    report.write(RESULTS / "step_cost.md", with_csv=True)


if __name__ == "__main__":
    main()
