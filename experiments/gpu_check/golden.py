"""The golden cases of the published reference implementations: logits in bf16 and decoded texts in fp32."""

from collections.abc import Iterator
from itertools import groupby

import torch
from safetensors.torch import load_file

from experiments.gpu_check.findings import Findings, Setup
from experiments.gpu_check.kernels import best_kernel
from services.worker.cache.kv_store import KvStore
from services.worker.engine.batch import Part, pack
from services.worker.engine.cache_mode import CacheMode
from services.worker.engine.offline_decoder import CaseRequest, DecodeOptions, decode_together
from services.worker.engine.sequence_state import SequenceState
from services.worker.model.attention import Kernel, kernel_of
from services.worker.model.decoder import PackedDecoder
from services.worker.model.model_runner import Runner
from services.worker.model.weights import load
from tests.support.golden import COPY, GoldenCase, threshold_cases
from tests.support.packed_forward import forward_packed

MODELS, BLOCK_MODELS = ("llada/seed1", "dream/seed1"), ("sdar/seed1", "llada2/seed1")
MAX_ERROR, MIN_EQUAL = 0.1, 0.85  # of the largest logit; share of equal predictions. A CPU has 0.06 and 0.9 in bf16
MIN_CASES = 0.95  # share of decoded texts that are the reference's, in fp32
ENTRIES = 256
MODES = {
    CacheMode.NONE: ("none", "none-block"),
    CacheMode.PREFIX: ("prefix",),
    CacheMode.DUAL: ("dual",),
    CacheMode.BLOCK: ("block",),
}  # as the cases name them


def sequence(ids: torch.Tensor) -> SequenceState:
    canvas = ids.numpy().astype("int32")
    known = torch.full((len(ids),), torch.nan).numpy()
    return SequenceState(0, 0, len(ids), canvas, known, kv_start=0)


def logits_pairs(model: str, decoder: PackedDecoder, kernel: Kernel) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
    """The name, own logits and the reference's of each stored forward: a whole one, and cached ones."""
    files = load_file(COPY / model / "forward.safetensors")
    pairs = []

    def forward(part: Part, store: KvStore) -> torch.Tensor:
        return decoder.logits(forward_packed(decoder, pack([part], decoder.config), store, kernel)).float().cpu()

    for key in (key for key in files if key.startswith("plain/") and key.endswith("/input_ids")):
        whole = sequence(files[key][0])
        part = Part(whole, 0, 0, 0, len(whole.canvas))
        pairs.append(
            ("whole", forward(part, KvStore(decoder.kv_shape, ENTRIES)), files[key.replace("input_ids", "logits")][0])
        )
    for case in sorted({key.rpartition("/")[0] for key in files if key.startswith("cached/")}):
        start, stop = files[f"{case}/block"].tolist()
        for mode in ("prefix", "dual"):
            store, resident = KvStore(decoder.kv_shape, ENTRIES), sequence(files[f"{case}/cache_input_ids"][0])
            length = len(resident.canvas)
            forward(Part(resident, 0, 0, 0, length), store)
            resident.canvas[:] = files[f"{case}/step_input_ids"][0].numpy()
            own = forward(Part(resident, 1, 0, start, length if mode == "prefix" else stop), store)
            pairs.append((mode, own, files[f"{case}/logits_{mode}"][0]))
    return pairs


@torch.inference_mode()
def logits(setup: Setup, found: Findings) -> None:
    """The logits in bf16, with the kernel that the worker chooses."""
    name = best_kernel(setup)
    found.notes.append(f"attention: {name}")
    found.columns = ["model", "forward", "largest error, of the largest logit", "equal predictions"]
    for model in MODELS:
        decoder = load(COPY / model, setup.half, setup.device)
        worst, equal = 0.0, list[torch.Tensor]()
        for kind, own, wanted in logits_pairs(model, decoder, kernel_of(name)):
            error = float((own - wanted).abs().max() / wanted.abs().max())
            equal.append((own.argmax(-1) == wanted.argmax(-1)).float())
            found.row(model, kind, f"{error:.3f}", f"{float(equal[-1].mean()):.1%}")
            worst = max(worst, error)
        found.checks[f"{model}: logits within {MAX_ERROR:.0%}"] = worst <= MAX_ERROR
        found.checks[f"{model}: at least {MIN_EQUAL:.0%} equal predictions"] = (
            float(torch.cat(equal).mean()) >= MIN_EQUAL
        )


def texts(setup: Setup, found: Findings) -> None:
    """The decoded texts in fp32, in each cache mode; cases of equal options in one batch."""
    found.columns = ["model", "cache", "cases", "equal texts"]
    for model in (*MODELS, *BLOCK_MODELS):
        runner = Runner(load(COPY / model, torch.float32, setup.device), cache_tokens=4096)
        for mode, names in MODES.items():
            cases = threshold_cases((model,), names, COPY)[: 3 if setup.is_toy else None]
            if not cases:
                continue
            equal = sum(equal_texts(runner, mode, cases))
            found.row(model, mode.value, len(cases), equal)
            found.checks[f"{model}, {mode.value}: at least {MIN_CASES:.0%} of the texts"] = equal >= MIN_CASES * len(
                cases
            )


def equal_texts(runner: Runner, mode: CacheMode, cases: list[GoldenCase]) -> Iterator[bool]:
    """Whether each case has the reference's text, in the order of their options."""

    def options(case: GoldenCase) -> tuple[float, int, int]:
        return case.threshold, case.block_length, len(case.output)

    for (threshold, block, output), group in groupby(sorted(cases, key=options), key=options):
        alike = list(group)
        requests = [CaseRequest(case.name, case.prompt) for case in alike]
        traces = decode_together(requests, runner, DecodeOptions(mode, threshold, block, output))
        yield from (trace.output_ids == case.output for trace, case in zip(traces, alike, strict=True))
