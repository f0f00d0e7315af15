"""The demo model's tokenizer, problems, training and decoding."""

import json
import re
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from typer.testing import CliRunner

from experiments.demo_model.answers import worked_answer
from experiments.demo_model.arithmetic import FULL, CalculationStep
from experiments.demo_model.batches import BatchSource
from experiments.demo_model.evaluate import decode, is_right, read_questions
from experiments.demo_model.examples import problem_text
from experiments.demo_model.model import new_decoder
from experiments.demo_model.problem import Problem
from experiments.demo_model.problems import draw_problem, random_problem
from experiments.demo_model.publish import held_out_questions, publish, read_model, write_questions
from experiments.demo_model.tokenizer import build_tokenizer, number_tokens, save_tokenizer
from experiments.demo_model.train import Recipe, Training, learning_rate
from experiments.train_demo_model import app

ROOT = Path(__file__).parents[3]
EQUATION = re.compile(r"(\d+)([-+*/])(\d+)=(\d+)")
SMALL = Recipe(steps=12, batch_size=2, warmup_steps=2, cooldown_steps=3)
WRITTEN = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__, "/": int.__truediv__}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return build_tokenizer(seed=0)


def problems(count: int, seed: int = 1) -> list[tuple[Problem, str]]:
    rng = Random(seed)
    drawn = [random_problem(FULL, rng) for _ in range(count)]
    return [(problem, worked_answer(problem, rng)) for problem in drawn]


# --- tokenizer ---


@pytest.mark.parametrize("text", ["{}", "has {} pears", "25+{}=", "What is {}?"])
def test_a_number_up_to_199_is_the_same_single_token_everywhere(tokenizer: Tokenizer, text: str) -> None:
    for number, token in number_tokens(tokenizer).items():
        assert token in tokenizer.encode(text.format(number)).ids


@given(text=st.text())
def test_any_text_decodes_exactly(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_transformers_loads_the_tokenizer_with_its_chat_template(tokenizer: Tokenizer, tmp_path: Path) -> None:
    from transformers import AutoTokenizer  # noqa: PLC0415 - takes seconds, only this test needs it

    save_tokenizer(tokenizer, tmp_path, max_length=512)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 2+3?"}]
    text = loaded.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    assert text == "<|system|>Be brief.<|user|>What is 2+3?<|assistant|>"
    assert loaded(text)["input_ids"] == tokenizer.encode(text).ids
    assert (loaded.mask_token, loaded.eos_token, loaded.pad_token) == ("<|mdm_mask|>", "<|endoftext|>", "<|endoftext|>")


# --- problems ---


def test_every_equation_is_true_and_the_last_gives_the_answer() -> None:
    for problem, text in problems(3000):
        equations = EQUATION.findall(text)
        assert len(equations) == len(problem.steps)
        for left, sign, right, result in equations:
            assert WRITTEN[sign](int(left), int(right)) == int(result)
        assert 0 <= problem.answer <= 99
        assert is_right(text, str(problem.answer))


def test_each_step_uses_an_earlier_result() -> None:
    for problem, _ in problems(1000):
        results = [step.result for step in problem.steps]
        for index, step in enumerate(problem.steps[1:], 1):
            assert {step.left, step.right} & set(results[:index])


@pytest.mark.parametrize(
    ("step", "equation"),
    [
        (CalculationStep(25, "+", 33), "25+33=58"),
        (CalculationStep(25, "-", 3), "25-3=22"),
        (CalculationStep(4, "*", 6), "4*6=24"),
        (CalculationStep(58, "/", 2), "58/2=29"),
    ],
)
def test_a_step_has_its_equation(step: CalculationStep, equation: str) -> None:
    assert step.equation == equation


def test_training_never_draws_a_held_out_problem_in_any_spelling() -> None:
    held_out = {question.prompt.lower().rstrip("?. ") for question in held_out_questions(seed=0, count=200)}
    rng = Random(3)
    drawn = {draw_problem(FULL, rng, held_out=False).prompt.lower().rstrip("?. ") for _ in range(5000)}
    assert not held_out & drawn


def test_the_generator_gives_the_committed_held_out_problems() -> None:
    path = ROOT / "models" / "demo" / "heldout.jsonl"
    committed = read_questions(path)
    assert len(committed) >= 500
    assert committed == held_out_questions(seed=0, count=len(committed))


def test_training_has_prompts_with_and_without_the_chat_template() -> None:
    rng = Random(0)
    prompts = [problem_text(FULL, rng)[0] for _ in range(600)]
    plain = sum("<|user|>" not in prompt for prompt in prompts) / len(prompts)
    assert 0.1 < plain < 0.25
    assert any(prompt.startswith("<|system|>") for prompt in prompts)


# --- batches ---


def test_a_batch_depends_only_on_seed_and_step(tokenizer: Tokenizer) -> None:
    one, other = (BatchSource(tokenizer, seed=5, batch_size=4) for _ in range(2))
    one.batch(0)
    for step in (40, 3):
        first, again = one.batch(step), other.batch(step)
        assert np.array_equal(first.tokens, again.tokens)
        assert np.array_equal(first.weights, again.weights)


def test_only_the_output_is_masked_and_only_masked_tokens_count(tokenizer: Tokenizer) -> None:
    source = BatchSource(tokenizer, seed=0, batch_size=8)
    end_of_prompt = tokenizer.token_to_id("<|assistant|>")
    for step in range(20):
        batch = source.batch(step)
        assert not (batch.weights[~batch.masked] > 0).any()
        assert (batch.weights.sum(axis=1) > 0).all()
        for tokens, masked in zip(batch.tokens, batch.masked, strict=True):
            prompt_ends = np.flatnonzero(tokens == end_of_prompt)
            assert not masked[: prompt_ends.max(initial=0)].any()


def test_all_blocks_after_the_decoded_one_are_masked(tokenizer: Tokenizer) -> None:
    source = BatchSource(tokenizer, seed=1, batch_size=8)
    later_blocks = 0
    for step in range(20):
        batch = source.batch(step)
        for masked, weights in zip(batch.masked, batch.weights, strict=True):
            later = np.flatnonzero(masked & (weights == 0))
            assert np.array_equal(later, np.arange(len(masked) - len(later), len(masked)))
            later_blocks += len(later) > 0
    assert later_blocks > 0


# --- training ---


def weights_after(training: Training, steps: int) -> tuple[list[float], torch.Tensor]:
    losses = [training.run_step() for _ in range(steps)]
    return losses, torch.cat([p.detach().flatten() for p in training.average.parameters()])


@pytest.mark.slow
def test_training_lowers_the_loss_and_resumes_to_identical_weights(tokenizer: Tokenizer, tmp_path: Path) -> None:
    whole = Training(tokenizer, SMALL)
    losses, wanted = weights_after(whole, SMALL.steps)
    assert np.mean(losses[-5:]) < 0.9 * np.mean(losses[:3])

    first = Training(tokenizer, SMALL)
    weights_after(first, 5)
    first.save(tmp_path / "state.pt")
    resumed = Training(tokenizer, SMALL)
    resumed.resume(tmp_path / "state.pt")
    assert resumed.step == 5
    _, got = weights_after(resumed, SMALL.steps - 5)
    assert torch.equal(got, wanted)


def test_a_checkpoint_of_another_recipe_is_rejected(tokenizer: Tokenizer, tmp_path: Path) -> None:
    Training(tokenizer, SMALL).save(tmp_path / "state.pt")
    with pytest.raises(ValueError, match="another recipe"):
        Training(tokenizer, replace(SMALL, steps=13)).resume(tmp_path / "state.pt")


def test_the_learning_rate_rises_and_then_falls_to_zero() -> None:
    recipe = Recipe(steps=100, warmup_steps=10, peak_rate=1.0, slow_fall_steps=200, cooldown_steps=20)
    rates = [learning_rate(step, recipe) for step in range(101)]
    assert rates.index(max(rates)) == 9
    assert rates[80] == pytest.approx(0.6)
    assert rates[90] == pytest.approx(0.55 / 2)
    assert rates[100] == 0.0


# --- decoding and publishing ---


def test_threshold_0_needs_one_step_per_block_and_1_one_step_per_token(tokenizer: Tokenizer) -> None:
    decoder = new_decoder(tokenizer, seed=0)
    prompts = torch.tensor([[5, 6, 7], [8, 9, 10]])
    _, once = decode(decoder, prompts, output_length=16, block_length=8, threshold=0.0)
    outputs, singly = decode(decoder, prompts, output_length=16, block_length=8, threshold=1.0)
    assert once.tolist() == [2, 2]
    assert singly.tolist() == [16, 16]
    assert not (outputs == decoder.config.mask_token_id).any()


@pytest.mark.parametrize(
    ("reply", "right"),
    [("25+33=58. The answer is 58.", True), ("The answer is 5.", False), ("The answer is 58", False), ("", False)],
)
def test_exact_match_needs_the_whole_sentence(reply: str, right: bool) -> None:
    assert is_right(reply, "58") is right


def test_a_published_model_can_be_read_and_evaluated(tokenizer: Tokenizer, tmp_path: Path) -> None:
    decoder = new_decoder(tokenizer, seed=0)
    with torch.no_grad():
        decoder.head_weight.mul_(1000.0)  # high confidence, so that decoding takes few steps
    publish(decoder, tokenizer, tmp_path)
    loaded, _ = read_model(tmp_path)
    for saved, original in zip(loaded.parameters(), decoder.parameters(), strict=True):
        assert torch.equal(saved, original.bfloat16().float())
    write_questions(held_out_questions(seed=0, count=2), tmp_path / "heldout.jsonl")
    assert json.loads((tmp_path / "heldout.jsonl").read_text().splitlines()[0])["output_tokens"] == 64
    result = CliRunner().invoke(app, ["--out", str(tmp_path), "--evaluate", "--threads", "1"])
    assert result.exit_code == 0
    assert "| 0.9 |" in result.output


def test_evaluating_a_missing_model_is_a_usage_error(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["--out", str(tmp_path), "--evaluate"])
    assert result.exit_code == 2
    assert "no model in" in result.output
