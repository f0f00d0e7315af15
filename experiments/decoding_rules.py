"""Published decoding rules against the threshold rule, at equal exact match: hierarchical and credit decoding.

python -m experiments.decoding_rules

Both are dInfer's (arXiv 2510.08666), with its default constants. The demo model answers held-out problems without a
cache at several thresholds with each rule. A rule saves steps if it needs fewer than the threshold rule does at the
same exact match, interpolated between its two nearest thresholds.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Protocol

import numpy as np
import torch
import typer
from tokenizers import Tokenizer
from torch import Tensor

from experiments.demo_model.evaluate import (
    BLOCK_LENGTH,
    MAX_ROWS,
    OUTPUT_LENGTH,
    HeldOutQuestion,
    is_right,
    read_questions,
    text_of,
)
from experiments.demo_model.model import hidden_rows
from experiments.demo_model.publish import HELD_OUT_FILE
from experiments.demo_model.tokenizer import ASSISTANT, USER
from experiments.report import RESULTS, Report, target_list
from services.worker.model.decoder import PackedDecoder
from services.worker.model.weights import load

MODEL = Path("models/demo")
THRESHOLDS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
LOW_THRESHOLD = 0.4  # of hierarchical decoding
CREDIT_WEIGHT, CREDIT_POWER, CREDIT_DECAY = 0.7, 0.2, 0.8
MIN_SAVING = 0.05  # mean share of the steps, from which a rule would be worth an option

Score = tuple[float, float]  # exact match, mean steps


class Rule(Protocol):
    """Decides the steps of one block of some rows."""

    def take(self, logits: Tensor, masked: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
        """The predicted tokens, and whether the step writes them. Shapes: [B, K, V], [B, K] -> [B, K] each."""


class ThresholdRule:
    """That of the worker."""

    def take(self, logits: Tensor, masked: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
        confidence, tokens = _confidence(logits, masked)
        return tokens, _with_best(confidence >= threshold, confidence)


class HierarchicalRule:
    """Writes also the most confident token of each run of masks, if it is above LOW_THRESHOLD."""

    def take(self, logits: Tensor, masked: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
        confidence, tokens = _confidence(logits, masked)
        begins = masked & ~masked.roll(1, dims=1)
        begins[:, 0] = masked[:, 0]
        run = (begins.cumsum(dim=1) - 1).clamp(min=0)  # [B, K], the index of its run of masks
        best = torch.full_like(confidence, -1.0).scatter_reduce(1, run, confidence, "amax").gather(1, run)
        of_run = masked & (confidence == best) & (confidence > LOW_THRESHOLD)
        return tokens, _with_best((confidence >= threshold) | of_run, confidence)


class CreditRule:
    """Raises the logits of tokens that were the most probable ones in earlier steps of the block."""

    def __init__(self) -> None:
        self._credit: Tensor | None = None  # [B, K, V]

    def take(self, logits: Tensor, masked: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
        if self._credit is None:
            self._credit = torch.zeros_like(logits)
        best, tokens = logits.softmax(dim=-1).max(dim=-1)
        gain = best.pow(CREDIT_POWER) * masked
        self._credit.mul_(CREDIT_DECAY).scatter_add_(2, tokens.unsqueeze(-1), gain.unsqueeze(-1))
        confidence, tokens = _confidence(logits + CREDIT_WEIGHT * torch.log1p(self._credit), masked)
        return tokens, _with_best(confidence >= threshold, confidence)


RULES: dict[str, Callable[[], Rule]] = {
    "threshold": ThresholdRule,
    "hierarchical": HierarchicalRule,
    "credit": CreditRule,
}


def _confidence(logits: Tensor, masked: Tensor) -> tuple[Tensor, Tensor]:
    """Each position's highest probability, -1 where there is no mask, and its token."""
    confidence, tokens = logits.softmax(dim=-1).max(dim=-1)
    return confidence.masked_fill(~masked, -1.0), tokens


def _with_best(taken: Tensor, confidence: Tensor) -> Tensor:
    """With the most confident mask of each row that has masks; positions without one are left out."""
    return taken.scatter(1, confidence.argmax(dim=1, keepdim=True), True) & (confidence >= 0)


@torch.inference_mode()
def decode(
    decoder: PackedDecoder, prompts: Tensor, new_rule: Callable[[], Rule], threshold: float
) -> tuple[Tensor, int]:
    """Decode rows of one prompt length, block by block. Shapes: prompts [B, P] -> outputs [B, O], steps of all rows."""
    mask_id, width = decoder.config.mask_token_id, prompts.shape[1]
    tokens = torch.cat((prompts, prompts.new_full((len(prompts), OUTPUT_LENGTH), mask_id)), dim=1)
    steps = 0
    for start in range(width, width + OUTPUT_LENGTH, BLOCK_LENGTH):
        block, rule = slice(start, start + BLOCK_LENGTH), new_rule()
        while (masked := tokens[:, block] == mask_id).any():
            hidden = hidden_rows(decoder, tokens).view(*tokens.shape, -1)[:, block]  # [B, K, W]
            predicted, taken = rule.take(decoder.logits(hidden).double(), masked, threshold)
            tokens[:, block] = torch.where(taken, predicted, tokens[:, block])
            steps += int(masked.any(dim=1).sum())
    return tokens[:, width:], steps


def score(
    decoder: PackedDecoder, tokenizer: Tokenizer, questions: Sequence[HeldOutQuestion], rule: str, threshold: float
) -> Score:
    """Exact match and mean steps over the questions."""
    by_length: dict[int, list[tuple[list[int], str]]] = defaultdict(list)
    for question in questions:
        ids = tokenizer.encode(f"{USER}{question.prompt}{ASSISTANT}").ids
        by_length[len(ids)].append((ids, question.answer))
    right = steps = 0
    for same in by_length.values():
        for at in range(0, len(same), MAX_ROWS):
            rows, answers = zip(*same[at : at + MAX_ROWS], strict=True)
            outputs, taken = decode(decoder, torch.tensor(rows), RULES[rule], threshold)
            texts = [text_of(tokenizer, output, decoder.config.eos_token_id) for output in outputs.tolist()]
            right += sum(is_right(text, answer) for text, answer in zip(texts, answers, strict=True))
            steps += taken
    return right / len(questions), steps / len(questions)


def saving(found: Score, curve: Sequence[Score]) -> float | None:
    """The share of the threshold rule's steps at the same exact match that this rule saves; None beyond its curve."""
    matches, steps = np.array(sorted(curve)).T
    match, taken = found
    return 1 - taken / float(np.interp(match, matches, steps)) if matches[0] <= match <= matches[-1] else None


def main(
    problems: Annotated[int, typer.Option(min=1, help="Held-out problems to answer.")] = 400,
    out: Annotated[Path, typer.Option(help="Directory of the report.")] = RESULTS,
) -> None:
    """Score each rule at each threshold, and write the report."""
    questions = read_questions(MODEL / HELD_OUT_FILE)[:problems]
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    report = Report(
        "Decoding rules at equal quality",
        f"Demo model, {len(questions)} held-out problems, no cache. Saving: of the steps that the threshold rule needs "
        "for the same exact match.",
    )
    report.add_columns("rule", "threshold", "exact match", "mean steps", "saving")
    targets = {}
    decoder = load(MODEL, torch.float32, "cpu")
    scores = {
        rule: [score(decoder, tokenizer, questions, rule, threshold) for threshold in THRESHOLDS] for rule in RULES
    }
    for rule, found in scores.items():
        savings = [saving(one, scores["threshold"]) for one in found]
        for threshold, (match, steps), share in zip(THRESHOLDS, found, savings, strict=True):
            report.add_row(
                rule,
                threshold,
                f"{match:.1%}",
                f"{steps:.1f}",
                "beyond the curve" if share is None else f"{share:+.0%}",
            )
        if rule != "threshold":
            mean = float(np.mean([share for share in savings if share is not None]))
            targets[f"{rule}: mean saving {mean:+.1%}, at least {MIN_SAVING:.0%}"] = mean >= MIN_SAVING
    report.add("Worth an option of the worker:", target_list(targets))
    report.write(out / "decoding_rules.md")


if __name__ == "__main__":
    typer.run(main)
