"""Rows of the table of faults in docs/reliability.md, under a short load: no request is lost, fails, ends twice or has
another text than without the fault."""

import pytest

from experiments.faults import __main__ as driver
from experiments.faults import actions
from experiments.faults.rows import FAULTS, Fault

ROWS = {
    "kill NATS",
    "stop scheduler 10 s, with a standby",
    "the leader of three NATS servers down 20 s",
    "the stream of requests deleted",
}
CHOSEN = [fault for fault in FAULTS if isinstance(fault, Fault) and fault.name in ROWS]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("fault", CHOSEN, ids=lambda fault: fault.name)
async def test_a_fault_costs_no_request(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("BEFORE_S", 2.0), ("AFTER_S", 1.0), ("MIN_REQUESTS", 30)):
        monkeypatch.setattr(driver, name, value)
    monkeypatch.setattr(actions, "DOWN_S", 5.0)
    found = await driver.break_local(fault, rate=5.0)
    assert found.requests >= 30
    assert (found.lost, found.failed, found.duplicated, found.wrong) == (0, 0, 0, 0), found
