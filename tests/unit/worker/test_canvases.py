"""Models that denoise canvases: the text of the authors' code, with and without a prefix cache, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec import structs

from services.worker.cache.prefix_pages import NO_PREFIXES, PrefixSize
from services.worker.engine.cache_mode import CacheMode
from services.worker.engine.canvas_draft import accepted
from services.worker.engine.engine import Engine, EngineLimits
from services.worker.engine.offline_decoder import CaseRequest, Decode, DecodeOptions, decode_together, run_iterations
from services.worker.engine.self_check import Canary
from services.worker.engine.sequence_state import open_sequence
from services.worker.model.canvas_runner import CanvasRunner
from services.worker.model.model_loading import largest_batch
from shared.arrays import pack_int32
from shared.errors import BadInput
from tests.support.canvas_model import open_canvas_model, write_canvas_model
from tests.support.canvas_reference import Reference, open_reference
from tests.support.gemma_files import CANVAS
from tests.support.present import present

STEPS = 4
OUTPUT = 2 * CANVAS
PROMPTS = [[(7 * i) % 90 + 3 for i in range(length)] for length in (21, 5, 40)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_canvas_model(tmp_path_factory.mktemp("model"), rules={"max_denoising_steps": STEPS})


@pytest.fixture(scope="module")
def runner(model: Path) -> CanvasRunner:
    return open_canvas_model(model)


def decode(runner: CanvasRunner, prompt: list[int]) -> list[int]:
    [trace] = decode_together([CaseRequest("a", prompt)], runner, DecodeOptions(CacheMode.BLOCK, 0.7, CANVAS, OUTPUT))
    return trace.output_ids


def engine(runner: CanvasRunner, prefixes: PrefixSize = NO_PREFIXES) -> Engine:
    return Engine(runner, CacheMode.BLOCK, EngineLimits(1024, 8), "a-1", prefixes)


def test_stored_prefixes_do_not_change_a_text(runner: CanvasRunner) -> None:
    cached, answer = engine(runner, PrefixSize(CANVAS, 8)), decode(runner, PROMPTS[2])
    longer = [*PROMPTS[2], *answer, *PROMPTS[1]]
    for prompt, loaded in ((PROMPTS[2], 0), (PROMPTS[2], 2 * CANVAS), (longer, 2 * CANVAS)):
        before = cached.prefixes.loaded_tokens
        request = Decode(CaseRequest("a", prompt), OUTPUT, CANVAS, lambda _: 0.7)
        assert list(run_iterations(cached, [request]))
        assert cached.prefixes.loaded_tokens - before >= loaded
        assert request.output.tolist() == decode(runner, prompt)


def test_its_canary_is_the_same_each_time(runner: CanvasRunner) -> None:
    canary = Canary.measure(runner)
    assert canary.check_alone() is None
    assert canary.check() is None


def test_the_largest_batch_has_whole_canvases(runner: CanvasRunner) -> None:
    batch = largest_batch(runner.config, 200, 3)
    assert len(batch.rows) == 3 * CANVAS
    assert np.isfinite(runner.run(batch).confidences).all()


@pytest.mark.parametrize("mode", [CacheMode.NONE, CacheMode.DUAL])
def test_other_caches_are_refused(runner: CanvasRunner, mode: CacheMode) -> None:
    with pytest.raises(BadInput, match="possible: block"):
        DecodeOptions(mode, 0.9, CANVAS, OUTPUT).check(runner.config)


def test_another_block_length_is_refused(runner: CanvasRunner) -> None:
    options = DecodeOptions(CacheMode.BLOCK, 0.9, 2 * CANVAS, OUTPUT)
    with pytest.raises(BadInput, match=f"blocks of {CANVAS} tokens, got {2 * CANVAS}"):
        decode_together([CaseRequest("a", [3])], runner, options)


@pytest.mark.parametrize(
    ("bound", "kept"), [(0.0, [0, 1, 0, 0]), (0.15, [0, 1, 0, 1]), (0.3, [1, 1, 0, 1]), (9.0, [1, 1, 1, 1])]
)
def test_the_lowest_entropies_within_the_bound_are_kept(bound: float, kept: list[int]) -> None:
    assert accepted(np.array([0.2, 0.1, 2.0, 0.1000001]), bound).astype(int).tolist() == kept


def test_the_threshold_gives_the_entropy_bound(runner: CanvasRunner) -> None:
    rules = present(runner.config.canvas)
    bounds = [rules.bound(threshold) for threshold in (1.0, 0.9, 0.7, 0.5)]
    assert bounds == pytest.approx([0.0, 0.1, 0.3, 0.5])


@pytest.mark.parametrize("fields", [{"pattern": "[0-9]+"}, {"choices": [pack_int32([5])]}, {"pinned": pack_int32([5])}])
def test_the_worker_refuses_work_that_canvases_do_not_support(runner: CanvasRunner, fields: dict[str, Any]) -> None:
    state = Decode(CaseRequest("a", PROMPTS[0]), OUTPUT, CANVAS, lambda _: 0.7).state(0, runner.config)
    with pytest.raises(BadInput, match=f"in each step: no {next(iter(fields))}"):
        open_sequence(structs.replace(state, **fields), runner.config)


pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

PROMPT = [(7 * i) % 90 + 3 for i in range(21)]
LENGTH = 48
STABLE: dict[str, Any] = {  # cold, and most draws are kept
    "sampler_config": {"_cls_name": "EntropyBoundSamplerConfig", "entropy_bound": 8.0}, "t_min": 0.01, "t_max": 0.1
}  # fmt: skip
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # sizes of the model, and rules of its decoding
    "window shorter than the text": ({"sliding_window": 6}, {}),
    "keys equal to values in half of the layers": (
        {"layer_types": ["sliding_attention", "full_attention"] * 3},
        {"t_min": 0.1, "t_max": 1.2},
    ),
    "one expert per token": ({"num_experts": 2, "top_k_experts": 1, "num_key_value_heads": 4}, {}),
    "stops when stable": ({"vocab_size": 97}, STABLE | {"confidence_threshold": 9.0}),
    "stops after two equal steps, grouped heads in all layers": (
        {"vocab_size": 97, "num_global_key_value_heads": 2, "global_head_dim": 16},
        STABLE | {"confidence_threshold": 1.5, "stability_threshold": 2},
    ),
}


@pytest.fixture(scope="module", params=MODELS)
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Reference, CanvasRunner]:
    sizes, rules = MODELS[request.param]
    directory = tmp_path_factory.mktemp("model")
    write_canvas_model(directory, list(MODELS).index(request.param), rules, **sizes)
    return open_reference(directory), open_canvas_model(directory)


@pytest.mark.parametrize("threshold", [0.9, 0.7, 0.5])
def test_tokens_steps_and_first_logits_are_those_of_the_authors(
    models: tuple[Reference, CanvasRunner], threshold: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference, runner = models
    rules, logits = present(runner.config.canvas), list[torch.Tensor]()
    wanted = reference.decode(PROMPT, LENGTH, rules.bound(float(np.float32(threshold))))
    own = runner.decoder.logits

    def kept(hidden: torch.Tensor) -> torch.Tensor:
        logits.append(own(hidden))
        return logits[-1].clone()

    monkeypatch.setattr(runner.decoder, "logits", kept)
    options = DecodeOptions(CacheMode.BLOCK, threshold, CANVAS, LENGTH, stop_at_eos=True)
    [found] = decode_together([CaseRequest("a", PROMPT)], runner, options)
    assert (found.output_ids, found.nfe) == (wanted, reference.forwards)
    first = reference.first_logits[0]
    assert (logits[0] - first).abs().max() <= 1e-4 * first.abs().max()
