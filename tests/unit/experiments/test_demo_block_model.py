"""The block-causal demo model's tasks, chat format, batches and training."""

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from experiments.demo_model.arithmetic import FULL
from experiments.demo_model.block_batches import PADDING_BLOCK, BlockBatchSource, allowed_keys
from experiments.demo_model.chat import CALL, CALL_END, Message, prompt_of
from experiments.demo_model.evaluate import decode_blocks, is_right
from experiments.demo_model.model import new_decoder
from experiments.demo_model.problems import draw_problem
from experiments.demo_model.publish import publish, read_model
from experiments.demo_model.task_tokenizer import build_task_tokenizer, save_task_tokenizer
from experiments.demo_model.tasks import Task, TaskKind, draw_task, task_of
from experiments.demo_model.tokenizer import number_tokens
from experiments.demo_model.train import BLOCK_RECIPE, Training
from services.worker.model.families import read_config

BLOCK = BLOCK_RECIPE.block_length


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return build_task_tokenizer(seed=0)


def tasks(kind: TaskKind, count: int = 300) -> list[Task]:
    rng = Random(1)
    return [task_of(kind, draw_problem(FULL, rng, held_out=False), FULL, rng) for _ in range(count)]


# --- tasks ---


def test_a_json_reply_has_the_keys_and_types_of_the_schema_in_the_prompt() -> None:
    checked = 0
    types = {"integer": int, "number": int, "string": str, "array": list}
    for task in tasks(TaskKind.JSON):
        reply = json.loads(task.reply)
        assert str(task.number) in map(str, reply.values())
        start = task.prompt.find('{"')
        if start < 0:
            continue
        schema, _ = json.JSONDecoder().raw_decode(task.prompt[start:])
        assert list(reply) == schema["required"]
        assert all(isinstance(reply[key], types[value["type"]]) for key, value in schema["properties"].items())
        checked += 1
    assert checked > 100


def test_a_reply_calls_only_tools_of_the_prompt_with_their_arguments() -> None:
    called = 0
    for task in tasks(TaskKind.TOOLS):
        described, decoder = task.prompt.removeprefix("<|tools|>"), json.JSONDecoder()
        tools = {}
        while described.startswith("{"):
            tool, end = decoder.raw_decode(described)
            tools[tool["name"]], described = tool["parameters"], described[end:]
        assert tools
        for text in task.reply.split(CALL)[1:]:
            call = json.loads(text.removesuffix(CALL_END))
            assert list(call["arguments"]) == tools[call["name"]]["required"]
            called += 1
    assert called > 200


def test_the_second_answer_of_a_chat_starts_from_the_first_result() -> None:
    for task in tasks(TaskKind.FOLLOW_UP):
        first = task.prompt.rpartition("The answer is ")[2].partition(".")[0]
        equation = next(word for word in task.reply.replace(".", " ").replace(",", " ").split() if "=" in word)
        assert equation.startswith(first)
        assert is_right(task.reply, str(task.number))


def test_the_published_template_renders_chats_as_the_training_does(tokenizer: Tokenizer, tmp_path: Path) -> None:
    from transformers import AutoTokenizer  # noqa: PLC0415 - takes seconds, only this test needs it

    save_task_tokenizer(tokenizer, tmp_path, max_length=2048)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    call = {"function": {"name": "calculate", "arguments": '{"expression": "2+3"}'}}
    turns: list[Message] = [
        {"role": "system", "content": "Use the tools."},
        {"role": "user", "content": "What is 2+3?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "5"},
    ]
    tools = [{"type": "function", "function": {"name": "calculate", "parameters": {"type": "object"}}}]
    text = loaded.apply_chat_template(turns, tools=tools, add_generation_prompt=True, tokenize=False)
    assert text == prompt_of(turns, tools)
    assert text == (
        '<|tools|>{"name": "calculate", "parameters": {"type": "object"}}<|system|>Use the tools.<|user|>What is 2+3?'
        '<|assistant|><tool_call>{"name": "calculate", "arguments": {"expression": "2+3"}}</tool_call><|endoftext|>'
        "<|tool|>5<|assistant|>"
    )
    assert loaded(text)["input_ids"] == tokenizer.encode(text).ids
    assert CALL in loaded.decode(loaded(text)["input_ids"], skip_special_tokens=True)


def test_the_tokenizer_has_pieces_for_numbers_and_json(tokenizer: Tokenizer) -> None:
    assert len(number_tokens(tokenizer)) == 200
    pieces = tokenizer.encode('{"answer": 29, "steps": ["1+2=3"]}').tokens
    assert len(pieces) <= 18


# --- batches ---


def test_a_block_of_the_copy_attends_to_itself_and_to_earlier_text() -> None:
    #            text        | copy of blocks 1 and 2, padding
    blocks = np.array([[0, 0, 1, 1, 2, 1, 1, 2, 2, PADDING_BLOCK]])
    allowed = allowed_keys(blocks, text=5)[0]
    for query in range(5):
        assert np.flatnonzero(allowed[query]).tolist() == [
            key for key in range(5) if blocks[0, key] <= blocks[0, query]
        ]
    assert np.flatnonzero(allowed[5]).tolist() == [0, 1, 5, 6]
    assert np.flatnonzero(allowed[8]).tolist() == [0, 1, 2, 3, 7, 8]
    assert np.flatnonzero(allowed[9]).tolist() == [9]


def test_only_the_output_in_the_copy_is_masked_and_in_the_loss(tokenizer: Tokenizer) -> None:
    source = BlockBatchSource(tokenizer, seed=0, batch_size=8, block_length=BLOCK)
    assistant = tokenizer.token_to_id("<|assistant|>")
    for step in range(700, 712):
        rows = source.rows(step)
        assert rows.positions is not None
        masked = rows.inputs == source.mask_id
        assert np.array_equal(rows.weights > 0, masked)
        assert (masked.sum(axis=1) > 0).all()
        for row, positions in enumerate(rows.positions):
            first = positions[masked[row]].min()
            text = rows.targets[row, : int(np.argmax(np.diff(positions, prepend=-1) < 0)) or None]
            prompt_ends = np.flatnonzero(text == assistant)
            assert first > prompt_ends.max(initial=-1) or len(prompt_ends) == 0


@pytest.mark.slow
def test_the_loss_falls_from_the_first_steps_on(tokenizer: Tokenizer) -> None:
    training = Training(tokenizer, replace(BLOCK_RECIPE, steps=12, batch_size=2, warmup_steps=2, cooldown_steps=3))
    losses = [training.run_step() for _ in range(12)]
    assert np.mean(losses[-4:]) < np.mean(losses[:3])


def test_a_published_block_model_is_read_as_a_block_causal_one_and_replies(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    decoder = new_decoder(tokenizer, seed=0, block_length=BLOCK)
    with torch.no_grad():
        decoder.head_weight.mul_(1000.0)  # high confidence, so that decoding takes few steps
    publish(decoder, tokenizer, tmp_path)
    config = read_config(tmp_path)
    assert (config.family, config.block_length, config.max_length) == ("sdar", BLOCK, 2048)
    loaded, _ = read_model(tmp_path)
    [reply] = decode_blocks(loaded, tokenizer, ["<|user|>What is 2+3?<|assistant|>"], 0.9)
    assert 1 <= reply.steps <= 200


def test_training_tasks_have_all_forms() -> None:
    rng = Random(3)
    drawn = [draw_task(FULL, rng) for _ in range(600)]
    assert sum(reply.startswith("{") for _, reply in drawn) > 60
    assert sum(CALL in reply for _, reply in drawn) > 50
    assert max(len(prompt) for prompt, _ in drawn) > 500
