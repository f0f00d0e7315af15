"""Families with the layers of Qwen or Llama: their logits are those of transformers, where tokens attend in both
directions or to their own and earlier blocks; and their texts depend on neither company nor exact caches nor ranks."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from services.worker.engine.batch import Part, pack
from services.worker.engine.cache_mode import CacheMode
from services.worker.engine.offline_decoder import CaseRequest, DecodeOptions, decode_together
from services.worker.engine.sequence_state import NO_REGION, SequenceState
from services.worker.model.model_loading import CacheSize, ModelChoice, open_runner
from services.worker.model.weights import load
from tests.support.packed_forward import forward_packed

BLOCK, MASK = 4, 90
PROMPTS = [[(7 * i + length) % 80 + 2 for i in range(length)] for length in (21, 5, 34)]
SIZES: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128, "eos_token_id": 1,
}  # fmt: skip
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24}


class Case(NamedTuple):
    """A family's architecture, and the model of transformers that has its layers."""

    architecture: str
    model: type[PreTrainedModel]
    config: PretrainedConfig
    block_length: int = 0


CASES = {
    "sdar-moe": Case(
        "SDARMoeForCausalLM", Qwen3MoeForCausalLM, Qwen3MoeConfig(**SIZES, **EXPERTS, norm_topk_prob=True), BLOCK
    ),
    "sdar-moe with the scores as weights": Case(
        "SDARMoeForCausalLM", Qwen3MoeForCausalLM, Qwen3MoeConfig(**SIZES, **EXPERTS, norm_topk_prob=False), BLOCK
    ),
    "a2d-qwen3": Case("A2DQwen3LMHeadModel", Qwen3ForCausalLM, Qwen3Config(**SIZES, tie_word_embeddings=True)),
    "a2d-qwen3 with blocks": Case("A2DQwen3LMHeadModel", Qwen3ForCausalLM, Qwen3Config(**SIZES), BLOCK),
    "stable-diffcoder": Case("StableDiffcoderForCausalLM", LlamaForCausalLM, LlamaConfig(**SIZES), BLOCK),
    "fast-dllm": Case("Fast_dLLM_QwenForCausalLM", Qwen2ForCausalLM, Qwen2Config(**SIZES), BLOCK),
    "a2d-qwen2": Case("A2DQwen2LMHeadModel", Qwen2ForCausalLM, Qwen2Config(**SIZES)),
}


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.fixture(scope="module")
def reference(case: Case) -> PreTrainedModel:
    torch.manual_seed(0)
    case.config._attn_implementation = "eager"
    model = case.model(case.config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, float(parameter.ndim == 1), 0.3)
    return model


@pytest.fixture(scope="module")
def checkpoint(case: Case, reference: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    reference.save_pretrained(directory)
    file = directory / "config.json"
    blocks = dict.fromkeys(("bd_size", "block_size"), case.block_length or None)  # the first is Fast-dLLM's
    own = {"architectures": [case.architecture], "mask_token_id": MASK, **blocks}
    file.write_text(json.dumps(json.loads(file.read_text()) | own))
    return directory


@torch.inference_mode()
def test_the_logits_are_those_of_transformers(case: Case, reference: PreTrainedModel, checkpoint: Path) -> None:
    decoder = load(checkpoint, torch.float32, "cpu")
    assert decoder.config.block_length == case.block_length
    texts = [prompt[: len(prompt) // BLOCK * BLOCK] for prompt in PROMPTS]
    parts = [Part(sequence(ids, case.block_length), 0, 0, 0, len(ids)) for ids in texts]
    own = decoder.logits(forward_packed(decoder, pack(parts, decoder.config), None))
    for ids, logits in zip(texts, torch.split(own, [len(ids) for ids in texts]), strict=True):
        blocks = torch.arange(len(ids)) // (case.block_length or len(ids))
        mask = torch.where(blocks[None] <= blocks[:, None], 0.0, -torch.inf)[None, None]
        wanted = reference(torch.tensor([ids]), attention_mask=mask, use_cache=False).logits[0]
        torch.testing.assert_close(logits, wanted, atol=5e-4, rtol=0)


def sequence(ids: list[int], block_length: int) -> SequenceState:
    known = np.full(len(ids), np.nan, dtype=np.float32)
    is_aligned = block_length > 0
    canvas = np.array(ids, dtype=np.int32)
    return SequenceState(0, 0, block_length or len(ids), canvas, known, kv_start=NO_REGION, is_aligned=is_aligned)


def texts_of(checkpoint: Path, mode: CacheMode, tp: int = 1) -> list[list[int]]:
    """The texts of all prompts together, which are those of each alone."""
    requests = [CaseRequest(str(i), prompt) for i, prompt in enumerate(PROMPTS)]
    options = DecodeOptions(mode, 0.3, BLOCK, 32)
    with open_runner(ModelChoice(str(checkpoint), "cpu", "float32", tp=tp, threads=1), CacheSize(8, 512)) as runner:
        together = [trace.output_ids for trace in decode_together(requests, runner, options)]
        for request, text in zip(requests, together, strict=True):
            assert decode_together([request], runner, options)[0].output_ids == text
    return together


def test_a_text_depends_on_neither_company_nor_an_exact_cache(case: Case, checkpoint: Path) -> None:
    texts = texts_of(checkpoint, CacheMode.NONE)
    assert len({token for text in texts for token in text}) > BLOCK
    if case.block_length:
        assert texts_of(checkpoint, CacheMode.BLOCK) == texts


@pytest.mark.slow
def test_a_split_model_writes_the_same_texts(checkpoint: Path) -> None:
    assert texts_of(checkpoint, CacheMode.NONE, tp=2) == texts_of(checkpoint, CacheMode.NONE)
