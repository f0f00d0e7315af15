"""The most bytes that each stream and bucket of a cell may hold, so that none takes the room of another.

A full stream of requests, outcomes or files refuses further messages. The others drop their oldest ones: a request
without a checkpoint begins again, and arrivals are statistics.
"""

MIN_DISK_BYTES = 64 << 20  # of a cell
DISK_BYTES = 8 << 30  # of a cell, unless the scheduler's settings give another number
STEP_BYTES = 256 << 20  # of step jobs, and of step results; in memory
INSTANCES_BYTES = 64 << 20  # of the registrations; in memory
# Of the lease, the probe, the configuration and the record of the models; outside the shares, so each always has room
SMALL_BYTES = 1 << 20
_SHARES = {  # of the cell's bytes on disk, in 64ths
    "REQUESTS": 8,
    "ARRIVALS": 4,
    "OUTCOMES": 16,
    "CHECKPOINTS": 8,
    "PLANS": 1,
    "BATCHES": 1,
    "claims": 5,
    "batches": 1,
    "conversations": 2,
    "files": 18,
}


def max_bytes(kind: str, disk_bytes: int) -> int:
    """The limit of a stream or bucket on disk, if all of them together have `disk_bytes`."""
    return disk_bytes * _SHARES[kind] // 64
