"""Nemotron-Labs-Diffusion beside transformers' Ministral 3, in the loop of its authors: finished text attends to
earlier tokens, and its last token predicts the first one of the next block."""

import json
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from transformers import Ministral3Config, Ministral3ForCausalLM

from services.worker.engine.cache_mode import CacheMode
from services.worker.engine.engine import Engine, EngineLimits
from services.worker.engine.offline_decoder import CaseRequest, DecodeOptions, decode_together
from services.worker.model.families import parse_config
from services.worker.model.model_loading import CacheSize, ModelChoice, open_runner
from shared.arrays import pack_int32, unpack_float32
from tests.support.steps import Decode, jobs_for, run_step

BLOCK, MASK, OUTPUT = 8, 90, 32
PROMPTS = [[(7 * i + length) % 80 + 2 for i in range(length)] for length in (21, 5, 16, 34)]
ROPE = {
    "rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 128,
    "beta_fast": 4.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
}  # fmt: skip
CONFIG = Ministral3Config(
    vocab_size=96, hidden_size=64, intermediate_size=80, num_hidden_layers=2, num_attention_heads=4, head_dim=16,
    num_key_value_heads=2, max_position_embeddings=128, eos_token_id=1, rope_parameters=ROPE, sliding_window=None,
)  # fmt: skip
Step = tuple[list[int], list[int]]  # positions from the start of the output, and tokens


@pytest.fixture(scope="module")
def reference() -> Ministral3ForCausalLM:
    torch.manual_seed(0)
    CONFIG._attn_implementation = "eager"
    model = Ministral3ForCausalLM(CONFIG).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, float(parameter.ndim == 1), 0.25)
    model.lm_head.weight.data[MASK] = 0
    return model


@pytest.fixture(scope="module")
def checkpoint(reference: Ministral3ForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    names = {"lm_head": "diffusion_head", "model": "encoder"}
    weights = {
        names[(parts := name.split(".", 1))[0]] + "." + parts[1]: x for name, x in reference.state_dict().items()
    }
    reference.save_pretrained(directory, state_dict=weights)
    own = {"architectures": ["NemotronLabsDiffusionModel"], "mask_token_id": MASK, "block_size": BLOCK}
    file = directory / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | own))
    return directory


@torch.inference_mode()
def logits_of(model: Ministral3ForCausalLM, text: list[int], block: list[int]) -> torch.Tensor:
    """Of finished text, and a block behind it: [T, V]."""
    ids = torch.tensor([*text, *block])
    at = torch.arange(len(ids))
    sees = (at[None] <= at[:, None]) | (at[:, None] >= len(text))
    mask = torch.where(sees, 0.0, -torch.inf)[None, None]
    logits: torch.Tensor = model(ids[None], attention_mask=mask, use_cache=False).logits[0]
    return logits


def decode(model: Ministral3ForCausalLM, prompt: list[int], threshold: float) -> list[Step]:
    """The loop of the authors' `generate` with a causal context. Returns: its steps."""
    text, steps = list(prompt), list[Step]()
    while (start := len(text) - len(prompt)) < OUTPUT:
        seed = int(logits_of(model, text, [])[-1].argmax())
        block = [seed] + [MASK] * (BLOCK - 1)
        steps.append(([start], [seed]))
        while MASK in block:
            confidence, token = logits_of(model, text, block)[-BLOCK:].softmax(dim=-1).max(dim=-1)
            confidence[[at for at, each in enumerate(block) if each != MASK]] = -1
            chosen = sorted({int(confidence.argmax()), *torch.nonzero(confidence > threshold).flatten().tolist()})
            for at in chosen:
                block[at] = int(token[at])
            steps.append(([start + at for at in chosen], [block[at] for at in chosen]))
        text += block
    return steps


def traces_of(checkpoint: Path, prompts: list[list[int]], threshold: float, tp: int = 1) -> list[list[Step]]:
    requests = [CaseRequest(str(i), prompt) for i, prompt in enumerate(prompts)]
    options = DecodeOptions(CacheMode.BLOCK, threshold, BLOCK, OUTPUT)
    with open_runner(ModelChoice(str(checkpoint), "cpu", "float32", tp=tp, threads=1), CacheSize(8, 512)) as runner:
        traces = decode_together(requests, runner, options)
    return [[(step.positions, step.tokens) for step in trace.steps] for trace in traces]


@pytest.mark.parametrize("threshold", [0.3, 0.6, 0.9])
def test_the_steps_are_those_of_its_authors_loop(
    reference: Ministral3ForCausalLM, checkpoint: Path, threshold: float
) -> None:
    expected = [decode(reference, prompt, threshold) for prompt in PROMPTS]
    assert traces_of(checkpoint, PROMPTS, threshold) == expected
    for prompt, steps in zip(PROMPTS, expected, strict=True):
        assert traces_of(checkpoint, [prompt], threshold) == [steps]


def test_a_label_has_its_probability_over_the_text_and_the_block(
    reference: Ministral3ForCausalLM, checkpoint: Path
) -> None:
    labels, ends, prompt = [[5, 6], [5, 7, 8], [9]], [1, 2], PROMPTS[0]
    logits = logits_of(reference, prompt, [MASK] * BLOCK)
    first = len(prompt) - 1  # its row predicts the first token of the block
    logprobs = torch.cat([logits[first : first + 1], logits[first + 2 :]]).double().log_softmax(dim=-1)
    scores = torch.stack(
        [
            sum(logprobs[at, token] for at, token in enumerate(label)) + logprobs[len(label), ends].logsumexp(dim=0)
            for label in labels
        ]
    )
    own = Decode(0, prompt, BLOCK, BLOCK, 0.9, MASK)
    jobs = jobs_for([own])
    state = replace(jobs.states[0], choices=[pack_int32(label) for label in labels], end_ids=pack_int32(ends))
    with open_runner(ModelChoice(str(checkpoint), "cpu", "float32", threads=1), CacheSize(8, 512)) as runner:
        engine = Engine(runner, CacheMode.BLOCK, EngineLimits(1024, 8), "a-1")
        [found] = run_step(engine, replace(jobs, states=[state])).choices
    assert unpack_float32(found.probabilities).tolist() == pytest.approx(scores.softmax(dim=0).tolist(), rel=1e-4)


@pytest.mark.slow
def test_a_split_model_has_the_same_steps(checkpoint: Path) -> None:
    assert traces_of(checkpoint, PROMPTS, 0.6, tp=2) == traces_of(checkpoint, PROMPTS, 0.6)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"mscale": 2.0}, "mscale"),
        ({"mscale": None, "mscale_all_dim": None}, "mscale"),
        ({"attention_factor": 1.2}, "attention_factor"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ({"truncate": False}, "truncate"),
        ({"rope_type": "longrope"}, "rope_type is 'longrope'"),
        ({"factor": 0}, "factor must be a finite number above 0"),
        ({"original_max_position_embeddings": 64}, "scales queries from position 64 on"),
    ],
)
def test_another_rotation_is_refused_by_name(checkpoint: Path, changed: dict[str, object], message: str) -> None:
    raw = json.loads((checkpoint / "config.json").read_text())
    with pytest.raises(ValueError, match=message):
        parse_config(raw | {"rope_parameters": raw["rope_parameters"] | changed})
