"""What is read off a live cluster for its simulation."""

import numpy as np
import pytest

from experiments.live_calibration import Served, fit_profile, fit_steps, read
from shared.messages.steps import StepKind


def served(steps: int = 9, output: int = 32, together: float = 1.0, launch: float = 0.01) -> Served:
    """Cache steps of 10 ms and 2 ms for each request; the first recomputes for 5 ms more."""
    recomputes = np.zeros(steps - 1)
    recomputes[0] = 1.0
    company = np.full(steps - 1, together)
    return Served(100, output, 1.0, True, 0.9, launch + 0.002 * company + 0.005 * recomputes, recomputes, company)


def test_step_latencies_by_company_and_kind_are_found_again() -> None:
    profile = fit_profile([served(together=n) for n in (1.0, 2.0, 4.0, 8.0)])
    assert profile.latency_s(1, 32.0, StepKind.CACHE) == pytest.approx(0.012)
    assert profile.latency_s(1, 8 * 32.0, StepKind.CACHE) == pytest.approx(0.026)
    assert profile.latency_s(1, 132.0, StepKind.RECOMPUTE) == pytest.approx(0.007)


def test_tokens_by_step_never_rise_with_the_threshold() -> None:
    table = fit_steps({0.5: [served(steps=8)], 0.7: [served(steps=4)], 0.9: [served(steps=16)]})
    assert table.thresholds.tolist() == [0.5, 0.7, 0.9]
    assert table.tokens_per_step.tolist() == [4.0, 4.0, 2.0]


def test_a_request_is_read_from_what_the_gateway_tells() -> None:
    steps = [
        {"t_ms": 10.0 * i, "block": i // 2, "kind": "cache" if i % 2 else "recompute", "batch_requests": 3}
        for i in range(4)
    ]
    told = {"latency_ms": 50.0, "slo_met": True, "mean_threshold": 0.8}
    one = read({"steps": steps, "dilaserve": told, "usage": {"prompt_tokens": 7}})
    assert (one.steps, one.output_tokens, one.prompt_tokens) == (4, 64, 7)
    assert one.step_s.tolist() == pytest.approx([0.01] * 3)
    assert one.recomputes.tolist() == [1, 0, 1]
