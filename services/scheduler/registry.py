"""The policies by name. Every command, the services and the simulator read them here.

A policy is imported when it is built, so that a command that only needs the names starts quickly.
"""

from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Literal, cast

from shared.errors import BadInput

if TYPE_CHECKING:
    from services.scheduler.policies import Policy
    from services.scheduler.settings import SchedulerSettings
    from services.scheduler.state.step_estimates import StepEstimates


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyEntry:
    """One policy, and its requirements."""

    summary: str  # one line
    builder: (
        str  # MODULE:FUNCTION or MODULE:CLASS.METHOD; it takes the settings and the estimates and returns the policy
    )
    uses_estimates: bool = False  # asks the step predictor; in a cell without one, one-shot estimates
    learns_difficulty: bool = True  # a request's own steps correct its one-shot estimate
    needs_profile: bool = False  # serves only instances that register a latency profile
    one_threshold: bool = False  # all requests have the setting `threshold`; `thresholds` is not used

    def build(self, settings: "SchedulerSettings", estimates: "StepEstimates") -> "Policy":
        return cast("Policy", resolve_name(self.builder)(settings, estimates))


POLICIES: dict[str, PolicyEntry] = {
    "dilaserve": PolicyEntry(
        summary="one threshold for all by the booked work, lower where a deadline needs it; batches are chosen",
        builder="services.scheduler.policies.dilaserve:DiLaServePolicy.build",
        uses_estimates=True,
        needs_profile=True,
    ),
    "paper": PolicyEntry(
        summary="DiLaServe as the paper describes it: no step in reserve",
        builder="services.scheduler.policies.paper:PaperPolicy.build",
        uses_estimates=True,
        learns_difficulty=False,
        needs_profile=True,
    ),
    "llumnix": PolicyEntry(
        summary="one threshold; the instance with the fewest tokens, moves at recompute steps",
        builder="services.scheduler.policies.fixed:build_llumnix",
        one_threshold=True,
    ),
    "infaas": PolicyEntry(
        summary="one threshold; the instance with the fewest tokens, no moves",
        builder="services.scheduler.policies.fixed:build_infaas",
        one_threshold=True,
    ),
    "fixed": PolicyEntry(
        summary="infaas by another name", builder="services.scheduler.policies.fixed:build_infaas", one_threshold=True
    ),
}
DEFAULT_POLICY = "dilaserve"

if TYPE_CHECKING:
    PolicyName = str
else:
    PolicyName = Literal[tuple(POLICIES)]  # the type of settings and options: only these names are accepted


def find_policy(name: str) -> PolicyEntry:
    """The policy of this name. Raises: BadInput if there is none."""
    if name not in POLICIES:
        raise BadInput(f"there is no policy {name!r}; accepted: {', '.join(POLICIES)}", "policy")
    return POLICIES[name]


def policies_that(*, use_one_threshold: bool) -> str:
    """The names of the policies that choose thresholds, or use one for all; for help texts."""
    return ", ".join(name for name, entry in POLICIES.items() if entry.one_threshold is use_one_threshold)
