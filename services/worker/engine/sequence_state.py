"""The state of one request on the worker, and its validation."""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from services.worker.engine.canvas_draft import CanvasDraft
from services.worker.model.families import ModelConfig
from services.worker.model.families.config import CanvasRules
from services.worker.model.logit_changes import RequestChanges
from services.worker.patterns.constraint import PatternConstraint
from services.worker.patterns.state_sets import StateSets
from shared.arrays import Float32, Int32, Int64, unpack_float32, unpack_int32
from shared.bus.codec import decode, encode
from shared.edits import ends_block
from shared.errors import BadInput
from shared.messages.requests import MAX_TOP_LOGPROBS, Sampling
from shared.messages.steps import MAX_POST_STEPS, RequestState
from shared.pinned import FREE, has_text_after_hole

NO_REGION = -1
GREEDY = Sampling()
NO_IDS: Int32 = np.zeros(0, dtype=np.int32)


@dataclass(slots=True)
class SequenceState:
    """One request on this instance. Shapes: canvas int32 [P + O], confidences float32 [O]."""

    ticket: int
    prompt_length: int
    block_length: int
    canvas: Int32  # the prompt, then the output with its masks
    confidences: Float32  # of each output token when it was unmasked; NaN: unknown
    sampling: Sampling = GREEDY
    seed: int = 0
    edit_threshold: float = 1.0  # 1: no effect
    max_post_steps: int = MAX_POST_STEPS  # with edits: as in RequestState
    post_steps: int = 0  # with edits: as in RequestState
    ended_blocks: int = 0  # with edits: the blocks that are known to have ended, from the first one on
    top_logprobs: int = 0  # tokens whose probabilities its client wants, at each position
    request_id: str = ""
    wants_provisional: bool = False  # whether its client wants provisional tokens
    kv_start: int = NO_REGION  # the first of its cache entries, one per token of the canvas
    cached_block: int = -1  # the block whose recompute step filled the cache
    is_aligned: bool = False  # its blocks lie on a grid of absolute positions
    is_exact: bool = False  # its finished blocks have exact keys and values, as those of block-causal models
    # Of a block-causal model, numbers of the canvas's first tokens:
    exact_tokens: int = 0  # their keys and values are cached and do not change again
    loaded_tokens: int = 0  # their keys and values were copied from the prefix cache
    stored_tokens: int = 0  # the prefix cache holds their keys and values
    pattern: str = ""  # a regular expression that its text must match; empty: none
    pinned: Int32 = field(default_factory=lambda: NO_IDS)  # the first positions of its output; FREE: not pinned
    text_tokens: int = 0  # the most tokens of its text
    compiling: Future[StateSets] | None = None  # its pattern, from its first step on; until then None
    constraint: PatternConstraint | None = None  # of its pattern, once that is compiled
    salt: str = ""  # only requests of the same salt share stored prefixes
    page_names: list[bytes] = field(default_factory=list)  # of its first pages, as far as computed
    last_step: int = -1  # the last step that ran
    end_ids: Int32 = field(default_factory=lambda: NO_IDS)  # tokens that end the text
    changes: RequestChanges | None = None  # by penalties and a bias; labels are drawn without them
    choices: Sequence[Int32] = ()  # the tokens of each label, one of which is its text; empty: any text
    rules: CanvasRules | None = None  # of a model that denoises canvases
    draft: CanvasDraft | None = None  # of its current block, once that has begun here
    thresholds_to_repeat: list[float] = field(default_factory=list)  # of that block's steps, which ran elsewhere

    @property
    def output(self) -> Int32:
        """The canvas after the prompt."""
        return self.canvas[self.prompt_length :]

    def possible_choices(self, start: int) -> Int64:
        """The indices of the labels that continue output[:start], which is filled."""
        written = self.output[:start]
        possible = [len(own) >= start and np.array_equal(own[:start], written) for own in self.choices]
        return np.flatnonzero(possible)

    def unwritten_block(self, block: int, mask_token_id: int) -> Int32:
        """The tokens of a block before its first step: masks, and the pinned ones."""
        start, stop = self.output_range(block)
        tokens = np.full(self.block_length, mask_token_id, dtype=np.int32)
        pinned = self.pinned[start:stop]
        known = np.flatnonzero(pinned != FREE)
        tokens[self.block_length - (stop - start) + known] = pinned[known]
        return tokens

    def begin_draft(self, block: int, vocab_size: int) -> None:
        """Have the draft of the current block, if the model denoises canvases."""
        if self.rules is None:
            return
        start, stop = self.block_range(block)
        if self.draft is None or self.draft.positions[0] != start:
            positions = np.arange(start, stop, dtype=np.int64)
            self.draft = CanvasDraft.begin(self.rules, vocab_size, self.seed, positions)

    @property
    def edits(self) -> bool:
        """Whether tokens of the block may change again."""
        return self.edit_threshold < 1

    def count_step(self, block: int, changes: int, *, began_without_masks: bool) -> None:
        """With edits: whether a step of the block, which changed this many tokens, ended the block."""
        self.post_steps += began_without_masks
        if began_without_masks and ends_block(changes, self.post_steps, self.max_post_steps):
            self.ended_blocks, self.post_steps = block + 1, 0

    @property
    def loaded_at_arrival(self) -> int:
        """Before its first step here: the tokens that this step need not feed, as an earlier request had computed them;
        later 0."""
        return self.loaded_tokens if self.last_step < 0 else 0

    @property
    def num_blocks(self) -> int:
        return (len(self.canvas) - self._first_start) // self.block_length

    def block_range(self, block: int) -> tuple[int, int]:
        """The positions [start, stop) of a block on the canvas. An aligned first block may begin with the last tokens
        of the prompt."""
        start = self._first_start + block * self.block_length
        return start, start + self.block_length

    def span_before(self, start: int) -> int:
        """The begin of the span that ends where a block of the output starts (see `Part.spans`)."""
        length = self.block_length
        return start - length if start > self.prompt_length else (start - 1) // length * length

    def block_of(self, position: int) -> int:
        """The block of a position in the output."""
        return (self.prompt_length + position - self._first_start) // self.block_length

    def output_range(self, block: int) -> tuple[int, int]:
        """The positions [start, stop) of a block in the output."""
        start, stop = self.block_range(block)
        return max(start - self.prompt_length, 0), stop - self.prompt_length

    @property
    def _first_start(self) -> int:
        return first_block_start(self.prompt_length, self.block_length, is_aligned=self.is_aligned)


def first_block_start(prompt_length: int, block_length: int, *, is_aligned: bool) -> int:
    """The position at which the first block of the output begins."""
    return prompt_length - prompt_length % block_length if is_aligned else prompt_length


def open_sequence(state: RequestState, config: ModelConfig) -> SequenceState:
    """A new state from a message. Raises: BadInput, which names the invalid field."""
    canvas, end_ids = _int32(state.canvas, "canvas").copy(), _int32(state.end_ids, "end_ids")
    _check_lengths(state, len(canvas), config)
    if canvas.min() < 0 or ((canvas >= config.vocab_size) & (canvas != config.mask_token_id)).any():
        raise BadInput(f"token ids must be in 0..{config.vocab_size - 1}", "canvas")
    if not -(2**63) <= state.seed < 2**63:
        raise BadInput(f"seed must fit in 64 bits, got {state.seed}", "seed")
    if not 0 <= state.edit_threshold <= 1:
        raise BadInput(f"edit_threshold must be in 0..1, got {state.edit_threshold}", "edit_threshold")
    if not 0 <= state.top_logprobs <= MAX_TOP_LOGPROBS:
        raise BadInput(f"top_logprobs must be in 0..{MAX_TOP_LOGPROBS}, got {state.top_logprobs}", "top_logprobs")
    for name in ("pattern", "choices", "pinned"):
        if config.canvas and getattr(state, name):
            raise BadInput(f"{config.family} models draw all tokens of a block again in each step: no {name}", name)
    if state.pattern and state.edit_threshold < 1:
        raise BadInput("tokens cannot change in a text that must match a pattern", "edit_threshold")
    if state.changes_logits and state.edit_threshold < 1:
        raise BadInput("tokens cannot change in a text with penalties or a bias", "edit_threshold")
    choices = _choices(state, end_ids, config.vocab_size)
    pinned = _pinned(state, canvas[state.prompt_length :], config)
    sampling = decode(encode(Sampling(**state.own_fields())), Sampling)  # which checks the bounds
    changes_logits = state.changes_logits and not choices
    return SequenceState(
        ticket=state.ticket,
        request_id=state.request_id,
        prompt_length=state.prompt_length,
        block_length=state.block_length,
        canvas=canvas,
        confidences=_confidences(state, canvas[state.prompt_length :], config),
        sampling=sampling,
        seed=state.seed,
        changes=RequestChanges.of(sampling, canvas[: state.prompt_length]) if changes_logits else None,
        edit_threshold=state.edit_threshold,
        max_post_steps=state.max_post_steps,
        post_steps=state.post_steps,
        top_logprobs=state.top_logprobs,
        wants_provisional=state.guesses,
        end_ids=end_ids,
        choices=choices,
        pattern=state.pattern,
        pinned=pinned,
        text_tokens=min(state.text_tokens or len(canvas), len(canvas) - state.prompt_length),
        salt=state.salt,
        is_aligned=config.is_aligned,
        is_exact=config.is_block_causal,
        rules=config.canvas,
        thresholds_to_repeat=unpack_float32(state.block_thresholds).tolist(),
    )


def _check_lengths(state: RequestState, length: int, config: ModelConfig) -> None:
    """Raises: BadInput unless prompt, output and blocks fit together and into the model."""
    output_length, block_length, is_aligned = length - state.prompt_length, state.block_length, config.is_aligned
    if state.prompt_length < 1:
        raise BadInput(f"prompt_length must be at least 1, got {state.prompt_length}", "prompt_length")
    if block_length < 1:
        raise BadInput(f"block_length must be at least 1, got {block_length}", "block_length")
    if config.canvas and block_length != config.block_length:
        message = f"{config.family} models have blocks of {config.block_length} tokens, got {block_length}"
        raise BadInput(message, "block_length")
    start = first_block_start(state.prompt_length, block_length, is_aligned=is_aligned)
    if output_length < 1 or (length - start) % block_length:
        end = f" after a prompt of {state.prompt_length}" if is_aligned else ""
        raise BadInput(f"an output of {output_length} tokens is not whole blocks of {block_length}{end}", "canvas")
    if length > config.max_length:
        raise BadInput(f"{length} tokens; the model takes at most {config.max_length}", "canvas")


def _choices(state: RequestState, end_ids: Int32, vocab_size: int) -> list[Int32]:
    """Raises: BadInput."""
    choices = [_int32(own, "choices") for own in state.choices]
    if choices and (state.pattern or state.edit_threshold < 1 or not len(end_ids)):
        raise BadInput("choices need a text without a pattern and edits, which ends at end tokens", "choices")
    if any(not len(own) or own.min() < 0 or own.max() >= vocab_size for own in choices):
        raise BadInput(f"choices must have tokens, in 0..{vocab_size - 1}", "choices")
    return choices


def _pinned(state: RequestState, output: Int32, config: ModelConfig) -> Int32:
    """Raises: BadInput unless the output has the pinned tokens, and the model can fill in the others."""
    pinned = _int32(state.pinned, "pinned")
    if len(pinned) > len(output) or (output[: len(pinned)] != pinned)[pinned != FREE].any():
        raise BadInput("the output lacks a pinned token", "pinned")
    if config.is_block_causal and has_text_after_hole(pinned):
        raise BadInput(f"{config.family} models are block-causal: no text can be pinned after a mask", "pinned")
    if len(pinned) and state.edit_threshold < 1:
        raise BadInput("tokens cannot change in an output with pinned ones", "edit_threshold")
    return pinned


def _confidences(state: RequestState, output: Int32, config: ModelConfig) -> Float32:
    """Those of the tokens that are unmasked already, NaN elsewhere. Raises: BadInput."""
    if len(state.confidences) % 4 or len(state.confidences) > 4 * len(output):
        raise BadInput("confidences must be float32, at most one for each token of the output", "confidences")
    given = unpack_float32(state.confidences)
    if not ((given >= 0) & (given <= 1)).all():
        raise BadInput("confidences must be in 0..1", "confidences")
    known = np.full(len(output), np.nan, dtype=np.float32)
    is_known = (given > 0) & (output[: len(given)] != config.mask_token_id)
    known[: len(given)][is_known] = given[is_known]
    return known


def _int32(data: bytes, name: str) -> Int32:
    if len(data) % 4:
        raise BadInput(f"{name} must be int32", name)
    return unpack_int32(data)
