"""Several simulated cells behind gateways."""

import numpy as np

from experiments.scale_simulation import SimulatedCells, by_slack, simulate_cells
from simulator.workload import make_trace

REQUESTS = 200


def test_each_request_is_served_by_one_cell_and_the_smaller_one_gets_fewer() -> None:
    arrival_s = np.arange(REQUESTS, dtype=np.float64) * 0.02
    workload = make_trace(arrival_s, np.full(REQUESTS, 64), np.full(REQUESTS, 32))
    found = simulate_cells(SimulatedCells([1, 4], workload), 2, workload, by_slack)
    assert sum(found.of_cell) == REQUESTS
    assert found.of_cell[0] < found.of_cell[1]
    assert found.cpu_s > 0
