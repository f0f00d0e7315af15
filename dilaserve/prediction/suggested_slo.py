"""An SLO that follows from the latency profile: a multiple of the latency of a request that is alone."""

import numpy as np

from shared.messages.cell import CacheName, is_exact
from shared.messages.instances import ModelCard
from shared.messages.requests import DEFAULT_BLOCK_LENGTH
from shared.predictor_card import PredictorCard
from shared.profile import LatencyProfile
from simulator.steps_table import StepsTable
from simulator.unloaded_latency import SLO_MULTIPLE, unloaded_latency_s
from simulator.workload import make_trace

TYPICAL_TOKENS = 256  # of the prompt and of the output, if the model takes that many


def alone_s(
    profile: LatencyProfile,
    predictor: PredictorCard,
    model: ModelCard,
    prompt_tokens: int,
    output_tokens: int,
    cache: CacheName,
) -> float:
    """Seconds of a request that is alone, at threshold 0.9. Raises: BadInput if the profile lacks a kind of step."""
    return unloaded_latency_s(
        make_trace(np.zeros(1), np.array([prompt_tokens]), np.array([output_tokens])),
        profile,
        StepsTable(np.array(predictor.thresholds), np.array(predictor.tokens_per_step)),
        caching=cache != "none",
        exact=is_exact(cache),
        block_length=model.block_length or DEFAULT_BLOCK_LENGTH,
    )


def suggested_slo_s(latency_s: float) -> float:
    """SLO_MULTIPLE times the latency of a request that is alone, with two digits. Source: "Experimental Setup"."""
    return float(f"{SLO_MULTIPLE * latency_s:.2g}")
