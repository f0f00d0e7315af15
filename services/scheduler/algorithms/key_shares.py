"""The share of the cluster that each API key may use, so that a burst of one key does not lower everybody's quality.

While the level stays at the highest candidate, every key uses what it wants. Beyond that, keys above their fair share
fall first. Arrays hold k keys; `parts` are their parts of the booked share of the SLO window.
"""

from collections.abc import Mapping

import numpy as np

from services.scheduler.algorithms.common_level import BOOKED_KNOTS, levels_at
from services.scheduler.state.request_table import NOWHERE, RequestTable
from shared.arrays import Float64, Int32, Int64

# In a full cluster requests stay longer, so the booked share of a key at its fair rate rises, too: its fair share rises
# with the load, up to this factor.
MAX_SLOWDOWN = 2.0
# Keys of equal rates differ by chance in their present requests. Differences within this many standard deviations
# (of a Poisson process) do not count: levels that follow chance are worth less than one level for the same work.
CHANCE_DEVIATIONS = 2.0


def fair_share(parts: Float64, weights: Float64, budget: float) -> float:
    """The max-min fair share per unit of weight: keys are cut at it so that all together use the budget, and what light
    keys leave goes to the others. Shapes: [k], weights above 0. Returns: infinity if no key is cut."""
    if parts.sum() <= budget:
        return np.inf
    order = (parts / weights).argsort()
    parts, weights = parts[order], weights[order]
    used = np.concatenate([[0.0], np.cumsum(parts)[:-1]])  # by the lighter keys, [k]
    fair = (budget - used) / np.cumsum(weights[::-1])[::-1]
    return float(fair[(parts >= fair * weights).argmax()])


def key_levels(parts: Float64, requests: Int64, weights: Float64, lowest: float, highest: float) -> Float64:
    """The level of each key: the highest candidate up to its fair share; above, the level that all would have if each
    used as much; the common level where the difference may be chance. Shapes: [k] each -> [k]."""
    booked = float(parts.sum())
    # The booked share if every key exceeded its fair share by the same factor as this key
    used = BOOKED_KNOTS[0] * parts / (fair_share(parts, weights, _budget(booked)) * weights)
    differs = np.abs(used - booked) > _noise_margin(used, requests)
    return levels_at(np.where(differs, used, booked), lowest, highest)


def allowed_shares(parts: Float64, requests: Int64, weights: Float64) -> Float64:
    """The limit of each key: its fair share if it clearly exceeds it, else infinity: the key has no limit and comes
    first. No key has a limit if all with requests exceed theirs. Shapes: [k] each -> [k]."""
    fair = fair_share(parts, weights, _budget(float(parts.sum()))) * weights
    exceeds = parts - fair > _noise_margin(parts, requests)
    if np.all(exceeds | (requests == 0)):
        return np.full(len(parts), np.inf)
    return np.where(exceeds, fair, np.inf)


def _budget(booked: float) -> float:
    """The booked share that the keys divide; it rises with the load, as MAX_SLOWDOWN states."""
    return BOOKED_KNOTS[0] * float(np.clip(booked / BOOKED_KNOTS[-1], 1.0, MAX_SLOWDOWN))


def _noise_margin(share: Float64, requests: Int64) -> Float64:
    """Differences in a key's booked share up to this may be chance. Shapes: [k] each -> [k]."""
    return CHANCE_DEVIATIONS * share / np.sqrt(np.maximum(requests, 1))


def shares_before(key: Int32 | Int64, booked: Float64, rank: Float64, used: Float64, allowed: Float64) -> Float64:
    """The use that comes before a request, as a multiple of its key's share, if the key uses it in the order of `rank`.

    Shapes: key (its index), booked (share of the SLO window) and rank [n]; used, by other requests of each key, and
    allowed [k]. -> [n]
    """
    order = np.lexsort((rank, key))
    sorted_key, sorted_booked = key[order], booked[order]
    before = np.cumsum(sorted_booked) - sorted_booked
    first = sorted_key.searchsorted(sorted_key)
    shares = np.empty(len(key))
    shares[order] = (before - before[first] + used[sorted_key]) / allowed[sorted_key]
    return shares


class FairKeys:
    """The fair shares of the keys at the last run of load control: whose thresholds fall first, and who waits first."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        """`weights` by key; the others have 1."""
        self._weights = weights
        self._allowed = np.zeros(0)  # share of the SLO window by the index of the key; empty: one key has all

    def set_levels(self, rows: Int64, booked: Float64, lowest: float, highest: float, table: RequestTable) -> None:
        """Give the requests of each key its level instead of the common one. Shapes: rows, all requests, and booked,
        the share of the SLO window of each, [n]."""
        keys = table.keys.names
        weights = np.array([self._weights.get(key, 1.0) for key in keys])
        parts = np.bincount(table.key[rows], booked, len(keys)).astype(np.float64)
        table.booked[rows] = booked
        requests = np.bincount(table.key[rows], minlength=len(keys))
        self._allowed = allowed_shares(parts, requests, weights)
        table.level[rows] = key_levels(parts, requests, weights, lowest, highest)[table.key[rows]]

    def forget(self) -> None:
        """Drop the shares: until the next `set_levels`, all requests count as one key's."""
        self._allowed = np.zeros(0)

    def shares_before(self, rows: Int64, rank: Float64, table: RequestTable) -> Float64:
        """The use that comes before each of `rows`, as a multiple of its key's share, if running requests and those of
        lower rank use it first; 0 for keys that are not above their share. Shapes: [n] each -> [n]."""
        if not np.isfinite(self._allowed).any() or not np.count_nonzero(table.instance[rows] == NOWHERE):
            return np.zeros(len(rows))
        stays = (table.ticket != 0) & (table.instance != NOWHERE)
        stays[rows] = False
        used = np.bincount(table.key[stays], table.booked[stays], len(self._allowed)).astype(np.float64)
        return shares_before(table.key[rows], table.booked[rows], rank, used, self._allowed)
