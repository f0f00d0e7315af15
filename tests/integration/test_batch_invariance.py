"""The demo models' answers do not depend on the other requests of a batch."""

from pathlib import Path

import pytest
import torch

from experiments.held_out import read_prompts
from services.worker.engine.cache_mode import CacheMode
from services.worker.engine.offline_decoder import CaseRequest, DecodeOptions, decode_together
from services.worker.model.model_loading import CacheSize, ModelChoice, open_runner

MODELS = Path(__file__).parents[2] / "models"
# AMX sums in another order with another number of rows
computes_bfloat16 = pytest.mark.skipif(
    not torch.cpu.get_capabilities().get("avx512_bf16") or torch.cpu.get_capabilities()["amx_bf16"],
    reason="this CPU does not compute in bfloat16 without AMX",
)


@pytest.mark.slow
@pytest.mark.parametrize("mode", CacheMode)
@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=computes_bfloat16)])
def test_every_step_is_the_same_alone_and_in_a_batch(mode: CacheMode, dtype: str) -> None:
    model, block_length = (MODELS / "demo-block", 16) if mode is CacheMode.BLOCK else (MODELS / "demo", 32)
    requests = [CaseRequest(str(i), prompt) for i, prompt in enumerate(read_prompts(model, 12))]
    options = DecodeOptions(mode, threshold=0.8, block_length=block_length, output_length=64)
    with open_runner(ModelChoice(str(model), dtype=dtype, threads=1), CacheSize(len(requests))) as runner:
        together = decode_together(requests, runner, options)
        alone = [trace for request in requests for trace in decode_together([request], runner, options)]
    assert together == alone
