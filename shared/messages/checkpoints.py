"""The state of a request from which the next scheduler continues: at its last block boundary, or of a streamed request
after its last step, so that no token is retracted."""

from typing import Annotated

import msgspec

from shared.messages.requests import TopTokens

Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]  # as in the scheduler's columns


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Scheduler -> the next scheduler: the tokens of an unfinished request.

    Subject: dilaserve.<cell>.checkpoints.<request>. Stream: CHECKPOINTS (file, last one per subject, limited age).
    """

    output_ids: bytes  # int32 [blocks done x block length]
    # int32 [block length], the current block of a streamed request, masks as -1; empty: all masks
    block_ids: bytes = b""
    confidences: bytes = b""  # float32, of each token of both; 0, or empty from earlier versions: not known
    top_tokens: TopTokens | None = None  # of the tokens of both; None if the request has no `top_logprobs`
    choices: bytes = b""  # float32, the probability of each label, once a step has read them
    block_length: Count  # tokens
    steps: Count  # completed denoising steps
    recompute_steps: Count
    threshold_tokens: float  # sum of the thresholds used, over unmasked tokens
    lowest_threshold: float
    migrations: Count
    instances: list[str]  # instances that ran a step, in order of first use
    last_instance: str = ""  # the instance that ran the last step
    step_s: float = 0.0  # total time of the iterations that ran its steps
    steps_at: bytes = b""  # int32 [c], completed steps at each candidate threshold
    tokens_at: bytes = b""  # int32 [c], tokens unmasked at each candidate threshold
    is_suspect: bool = False  # an instance failed during its next step
    attempts: Count = 0  # failed ones of its next step alone
    post_steps: Count = 0  # steps of the current block that began without masks
    edits: Count = 0  # changes of tokens that an earlier step had unmasked
    cached_tokens: Count = 0  # of the prompt, that a prefix cache had at the first step
