"""Fairness between API keys: the keys whose thresholds fall first, and whose requests wait first."""

from collections.abc import Mapping

import numpy as np

from services.scheduler.algorithms.key_shares import allowed_shares, key_levels, shares_before
from services.scheduler.state.request_table import NOWHERE, RequestTable
from shared.arrays import Float64, Int64


class FairKeys:
    """The fair shares of the keys at the last run of load control."""

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
