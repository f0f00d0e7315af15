"""Decodes held-out problems by the threshold rule, and measures quality and steps."""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from experiments.demo_model.model import hidden_rows
from experiments.demo_model.tokenizer import ASSISTANT, USER
from experiments.report import markdown_table
from services.worker.cache.cache_mode import CacheMode
from services.worker.engine.offline_decoder import CaseRequest, DecodeOptions, decode_together
from services.worker.model.decoder import PackedDecoder
from services.worker.model.model_runner import Runner

BLOCK_LENGTH = 32
OUTPUT_LENGTH = 64
MAX_OUTPUT = 128  # tokens of a block-causal model's reply, which ends with its text
MAX_ROWS = 64  # that are decoded together
ANSWER = re.compile(r"The answer is (-?\d+)\.")


@dataclass(frozen=True, slots=True)
class HeldOutQuestion:
    """A row of `heldout.jsonl`."""

    prompt: str
    answer: str


@dataclass(frozen=True, slots=True)
class DecodedReply:
    """A decoded answer. `steps` counts denoising steps over all blocks, `tokens` those that they unmasked."""

    text: str
    steps: int
    tokens: int


@dataclass(frozen=True, slots=True)
class EvaluationScore:
    """Units: `exact_match` in 0 ... 1, `mean_steps` in steps per request."""

    threshold: float
    exact_match: float
    mean_steps: float
    tokens_per_step: float


def read_questions(path: Path) -> list[HeldOutQuestion]:
    """Read a JSON Lines file of problems with their answers."""
    rows = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    return [HeldOutQuestion(row["prompt"], str(row["answer"])) for row in rows]


@torch.inference_mode()
def decode(
    decoder: PackedDecoder, prompts: Tensor, output_length: int, block_length: int, threshold: float
) -> tuple[Tensor, Tensor]:
    """Decode rows of one prompt length, block by block, without a stop at EOS.

    A step unmasks each masked token of the block whose confidence (softmax in float64 over the raw logits) is at
    least the threshold, and always the most confident one.
    Source: threshold decoding of Fast-dLLM, without a cache.
    Shapes: prompts [B, P] -> outputs [B, O] and the number of steps of each row [B].
    """
    num_rows, prompt_len = prompts.shape
    mask_id = decoder.config.mask_token_id
    tokens = torch.cat((prompts, prompts.new_full((num_rows, output_length), mask_id)), dim=1)
    steps = torch.zeros(num_rows, dtype=torch.int64)
    for start in range(prompt_len, prompt_len + output_length, block_length):
        block = slice(start, start + block_length)
        while len(rows := (tokens[:, block] == mask_id).any(dim=1).nonzero().flatten()):
            tokens[rows, block] = unmask(decoder, tokens[rows], block, threshold)
            steps[rows] += 1
    return tokens[:, prompt_len:], steps


def unmask(decoder: PackedDecoder, tokens: Tensor, block: slice, threshold: float) -> Tensor:
    """One denoising step of each row. Shapes: tokens [B, L] -> the block after the step [B, block]."""
    hidden = hidden_rows(decoder, tokens).view(*tokens.shape, -1)[:, block]  # [B, block, W]
    confidence, best = decoder.logits(hidden).double().softmax(dim=-1).max(dim=-1)  # [B, block] each
    current = tokens[:, block]
    confidence = confidence.masked_fill(current != decoder.config.mask_token_id, -1.0)
    taken = confidence >= threshold
    taken.scatter_(1, confidence.argmax(dim=1, keepdim=True), True)
    return torch.where(taken, best, current)


def reply_all(
    decoder: PackedDecoder,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    threshold: float,
    output_length: int = OUTPUT_LENGTH,
) -> list[DecodedReply]:
    """Answer each prompt, as one user turn of a chat."""
    texts = [f"{USER}{prompt}{ASSISTANT}" for prompt in prompts]
    if decoder.config.is_block_causal:
        return decode_blocks(decoder, tokenizer, texts, threshold)
    return decode_lengths(decoder, tokenizer, texts, threshold, output_length)


def decode_blocks(
    decoder: PackedDecoder, tokenizer: Tokenizer, texts: Sequence[str], threshold: float
) -> list[DecodedReply]:
    """Continue each text with the worker's own engine and its exact cache, to the block with the end of text."""
    prompts = [tokenizer.encode(text).ids for text in texts]
    options = DecodeOptions(CacheMode.BLOCK, threshold, decoder.config.block_length, MAX_OUTPUT, stop_at_eos=True)
    replies = []
    for at in range(0, len(prompts), MAX_ROWS):
        rows = prompts[at : at + MAX_ROWS]
        room = sum(len(row) + MAX_OUTPUT + decoder.config.block_length for row in rows)
        requests = [CaseRequest(str(index), row) for index, row in enumerate(rows)]
        traces = decode_together(requests, Runner(decoder, room), options)
        eos_id = decoder.config.eos_token_id
        for trace in traces:
            text = text_of(tokenizer, trace.output_ids, eos_id)
            replies.append(DecodedReply(text, trace.nfe, len(trace.output_ids)))
    return replies


def decode_lengths(
    decoder: PackedDecoder, tokenizer: Tokenizer, texts: Sequence[str], threshold: float, output_length: int
) -> list[DecodedReply]:
    """Continue each text without a cache; those of one length are decoded together."""
    by_length: dict[int, list[tuple[int, list[int]]]] = defaultdict(list)
    for index, text in enumerate(texts):
        ids = tokenizer.encode(text).ids
        by_length[len(ids)].append((index, ids))
    replies: dict[int, DecodedReply] = {}
    for group in by_length.values():
        for at in range(0, len(group), MAX_ROWS):
            indices, rows = zip(*group[at : at + MAX_ROWS], strict=True)
            outputs, steps = decode(decoder, torch.tensor(rows), output_length, BLOCK_LENGTH, threshold)
            for index, output, count in zip(indices, outputs.tolist(), steps.tolist(), strict=True):
                replies[index] = DecodedReply(
                    text_of(tokenizer, output, decoder.config.eos_token_id), count, output_length
                )
    return [replies[index] for index in range(len(texts))]


def text_length(output: Sequence[int], eos_id: int) -> int:
    """The tokens before the first EOS."""
    return output.index(eos_id) if eos_id in output else len(output)


def text_of(tokenizer: Tokenizer, output: list[int], eos_id: int) -> str:
    """The text before the first EOS."""
    return str(tokenizer.decode(output[: text_length(output, eos_id)]))


def is_right(reply: str, answer: str) -> bool:
    """Whether the reply states the answer, in the words "The answer is N."."""
    stated = ANSWER.search(reply)
    return stated is not None and stated.group(1) == answer


def score(
    decoder: PackedDecoder, tokenizer: Tokenizer, questions: Sequence[HeldOutQuestion], threshold: float
) -> EvaluationScore:
    """Exact match and mean steps over the questions, at one threshold."""
    replies = reply_all(decoder, tokenizer, [question.prompt for question in questions], threshold)
    right = sum(is_right(reply.text, question.answer) for reply, question in zip(replies, questions, strict=True))
    steps, tokens = (sum(getattr(reply, name) for reply in replies) for name in ("steps", "tokens"))
    return EvaluationScore(threshold, right / len(questions), steps / len(questions), tokens / steps)


def table(scores: Iterable[EvaluationScore]) -> str:
    """The scores as the Markdown table of the model card."""
    rows = ((f"{s.threshold:.1f}", f"{s.exact_match:.1%}", f"{s.mean_steps:.1f}") for s in scores)
    return markdown_table(("threshold", "exact match", "mean steps"), rows)
