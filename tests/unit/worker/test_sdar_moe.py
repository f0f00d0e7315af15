"""SDAR with experts has the layers of Qwen3-MoE: its logits are those of transformers, where blocks attend to earlier
ones, and its texts do not depend on the cache, the company or the ranks."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from services.worker.engine.batch import Part, pack
from services.worker.engine.cache_mode import CacheMode
from services.worker.engine.offline_decoder import CaseRequest, DecodeOptions, decode_together
from services.worker.engine.sequence_state import NO_REGION, SequenceState
from services.worker.model.model_loading import CacheSize, ModelChoice, open_runner
from services.worker.model.weights import load
from tests.support.packed_forward import forward_packed

BLOCK, MASK = 4, 90
PROMPTS = [[(7 * i + length) % 80 + 2 for i in range(length)] for length in (21, 5, 34)]


@pytest.fixture(scope="module", params=[True, False], ids=["normalized", "scores"])
def reference(request: pytest.FixtureRequest) -> Qwen3MoeForCausalLM:
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=96, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=128, num_experts=8, num_experts_per_tok=3,
        moe_intermediate_size=24, norm_topk_prob=request.param, attn_implementation="eager", eos_token_id=1,
    )  # fmt: skip
    model = Qwen3MoeForCausalLM(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, float(parameter.ndim == 1), 0.3)
    return model


@pytest.fixture(scope="module")
def checkpoint(reference: Qwen3MoeForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("sdar-moe")
    reference.save_pretrained(directory)
    file = directory / "config.json"
    own = {"architectures": ["SDARMoeForCausalLM"], "model_type": "sdar_moe", "mask_token_id": MASK}
    file.write_text(json.dumps(json.loads(file.read_text()) | own))
    return directory


@torch.inference_mode()
def test_its_logits_are_those_of_qwen3_moe_with_blocks(reference: Qwen3MoeForCausalLM, checkpoint: Path) -> None:
    decoder = load(checkpoint, torch.float32, "cpu")
    assert decoder.config.block_length == BLOCK
    whole = [prompt[: len(prompt) // BLOCK * BLOCK] for prompt in PROMPTS]
    parts = [
        Part(
            SequenceState(0, 0, BLOCK, np.array(ids, np.int32), np.full(len(ids), np.nan, np.float32),
                          kv_start=NO_REGION, is_aligned=True),
            0, 0, 0, len(ids),
        )
        for ids in whole
    ]  # fmt: skip
    own = decoder.logits(forward_packed(decoder, pack(parts, decoder.config), None))
    for ids, logits in zip(whole, torch.split(own, [len(ids) for ids in whole]), strict=True):
        blocks = torch.arange(len(ids)) // BLOCK
        mask = torch.where(blocks[None] <= blocks[:, None], 0.0, -torch.inf)[None, None]
        wanted = reference(torch.tensor([ids]), attention_mask=mask, use_cache=False).logits[0]
        torch.testing.assert_close(logits, wanted, atol=5e-4, rtol=0)


def test_its_texts_depend_on_neither_cache_nor_company_nor_ranks(checkpoint: Path) -> None:
    requests = [CaseRequest(str(i), prompt) for i, prompt in enumerate(PROMPTS)]
    texts = []
    for tp, modes in ((1, (CacheMode.NONE, CacheMode.BLOCK)), (2, (CacheMode.BLOCK,))):
        with open_runner(ModelChoice(str(checkpoint), "cpu", "float32", tp=tp, threads=1), CacheSize(8, 512)) as runner:
            for mode in modes:
                options = DecodeOptions(mode, 0.3, BLOCK, 32)
                alone = [decode_together([request], runner, options)[0].output_ids for request in requests]
                assert [trace.output_ids for trace in decode_together(requests, runner, options)] == alone
                texts.append(alone)
    assert texts[0] == texts[1] == texts[2]
    assert len({token for text in texts[0] for token in text}) > BLOCK
