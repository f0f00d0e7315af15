"""Tensor parallelism reproduces every golden case in every cache mode."""

import pytest

from services.worker.model.model_loading import CacheSize, ModelChoice, open_runner
from tests.support.engines import MODES, assert_traces, decode_cases
from tests.support.golden import GOLDEN, SETS, threshold_cases

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize("name", SETS)
def test_ranks_together_decode_every_case_like_the_reference(name: str, tp: int) -> None:
    choice = ModelChoice(str(GOLDEN / name), dtype="float32", tp=tp, threads=1)
    with open_runner(choice, CacheSize(64, 4096)) as ranks:
        for mode in MODES:
            if cases := threshold_cases((name,), (mode,)):
                assert_traces(decode_cases(cases, ranks), cases)
