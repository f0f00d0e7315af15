"""DiffusionGemma beside its authors' code on random weights, in float32."""

from typing import Any

import numpy as np
import pytest
import torch

from services.worker.engine.cache_mode import CacheMode
from services.worker.engine.offline_decoder import CaseRequest, DecodeOptions, decode_together
from services.worker.model.canvas_runner import CanvasRunner
from tests.support.canvas_model import open_canvas_model, write_canvas_model
from tests.support.canvas_reference import Reference, open_reference
from tests.support.gemma_files import CANVAS
from tests.support.present import present

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

PROMPT = [(7 * i) % 90 + 3 for i in range(21)]
OUTPUT = 48
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
    wanted = reference.decode(PROMPT, OUTPUT, rules.bound(float(np.float32(threshold))))
    own = runner.decoder.logits

    def kept(hidden: torch.Tensor) -> torch.Tensor:
        logits.append(own(hidden))
        return logits[-1].clone()

    monkeypatch.setattr(runner.decoder, "logits", kept)
    options = DecodeOptions(CacheMode.BLOCK, threshold, CANVAS, OUTPUT, stop_at_eos=True)
    [found] = decode_together([CaseRequest("a", PROMPT)], runner, options)
    assert (found.output_ids, found.nfe) == (wanted, reference.forwards)
    first = reference.first_logits[0]
    assert (logits[0] - first).abs().max() <= 1e-4 * first.abs().max()
