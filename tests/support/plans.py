"""A decision of the reconfigurator."""

import time

from shared.messages.launch import InstanceSpec
from shared.messages.plans import PlanEvent, PlanRecord, PlanState


def plan(state: PlanState = PlanState.DONE, reason: str = "the load has grown", *events: str) -> PlanRecord:
    """From one TP-2 to two TP-1."""
    now_s = time.time()
    return PlanRecord(
        plan_id="plan-1",
        decided_s=now_s,
        state=state,
        reason=reason,
        status="optimal",
        mean_threshold=0.82,
        slack_s=3.5,
        before=[InstanceSpec(node="local", gpus=(0, 1))],
        target=[InstanceSpec(node="local", gpus=(0,)), InstanceSpec(node="local", gpus=(1,))],
        events=[PlanEvent(at_s=now_s, text=text) for text in events],
    )
