"""An upper bound on the requests that can be in time, of any policy: work is a fluid that instances share without loss.

Each request is known from the start, with its difficulty. It is served at the lowest threshold, in batches that fill an
instance's room with requests like itself, and may use any slot that its time from arrival to deadline touches.
"""

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_matrix

from experiments.policies.points import Point
from services.scheduler.settings import SchedulerSettings
from shared.arrays import Float64
from shared.messages.steps import StepKind
from simulator.scenario import difficulty_levels
from simulator.unmasking_model import UnmaskingTables, hundredths_of
from simulator.workload import ArrivalTrace

SLOT_S = 2.0
MAX_REQUESTS = 64  # of a batch


def bound(point: Point, arriving: ArrivalTrace, seed: int) -> float:
    """The percentage of the requests that can be in time, at most."""
    slo_s = np.where(np.isnan(arriving.slo_s), point.slo_s(arriving), arriving.slo_s)
    work_s, alone_s = costs(point, arriving, seed)
    able = alone_s <= slo_s
    due_s = arriving.arrival_s + slo_s
    return 100 * most_in_time(arriving.arrival_s[able], due_s[able], work_s[able], point.instances) / len(arriving)


def costs(point: Point, arriving: ArrivalTrace, seed: int) -> tuple[Float64, Float64]:
    """The seconds of an instance that each request takes in full batches, and its latency alone. Shapes: [n] each."""
    model, profile = UnmaskingTables(point.steps(), point.model.block_length), point.profile()
    levels = difficulty_levels(seed, len(arriving))
    lowest = hundredths_of(np.array([min(SchedulerSettings(model="simulated").candidates)]))
    steps = model.steps_left(lowest)(levels, arriving.output_tokens)[:, 0]
    blocks, tokens = arriving.output_tokens / model.block_length, arriving.prompt_tokens + arriving.output_tokens
    full = np.clip(point.room_tokens / tokens, 1.0, MAX_REQUESTS)

    def seconds(batch: Float64 | float) -> Float64:
        cache_s = profile.latency_s(1, batch * model.block_length, StepKind.CACHE)
        recompute_s = profile.latency_s(1, batch * tokens, StepKind.RECOMPUTE)
        # each block has one step that recomputes the whole text; the other steps read the cache
        total_s: Float64 = ((steps - blocks) * cache_s + blocks * recompute_s) / batch
        return total_s

    return seconds(full), seconds(1.0)


def most_in_time(arrival_s: Float64, due_s: Float64, work_s: Float64, instances: int, slot_s: float = SLOT_S) -> float:
    """The number of requests, in fractions, whose work fits between their arrivals and deadlines; a linear programme
    over slots of time. Shapes: [n] each."""
    first = np.floor(arrival_s / slot_s).astype(np.int64)
    slots = np.ceil(due_s / slot_s).astype(np.int64) - first
    request = np.repeat(np.arange(len(slots)), slots)
    slot = np.arange(len(request)) - np.repeat(slots.cumsum() - slots - first, slots)
    used, slot = np.unique(slot, return_inverse=True)
    each, n = np.arange(len(request)), len(slots)
    rows, columns = np.concatenate([request, n + slot]), np.concatenate([each, each])
    limits = coo_matrix((np.ones(len(rows)), (rows, columns)), shape=(n + len(used), len(request)))
    room = np.concatenate([work_s, np.full(len(used), instances * slot_s)])
    return float(-linprog(-1 / work_s[request], A_ub=limits, b_ub=room, method="highs").fun) if n else 0.0
