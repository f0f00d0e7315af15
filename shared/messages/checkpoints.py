"""The state of a request at its last block boundary, from which the next scheduler goes on."""

import msgspec


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Scheduler -> itself after a crash: finished blocks of a request that is not finished.

    Subject: dilaserve.<cell>.checkpoints.<request>. Stream: CHECKPOINTS (file, last one per subject, limited age).
    """

    output_ids: bytes  # int32 [blocks done x block length]
    block_length: int  # tokens
    steps: int  # denoising steps done
    recompute_steps: int
    threshold_tokens: float  # sum over unmasked tokens of the threshold used
    lowest_threshold: float
    migrations: int
    instances: list[str]  # that ran a step, in the order of first use
    last_instance: str = ""  # of these, the one that ran the last step
    step_s: float = 0.0  # computing time of the iterations that ran its steps
    steps_at: bytes = b""  # int32 [c], steps done at each candidate threshold
    tokens_at: bytes = b""  # int32 [c], tokens they unmasked
