"""The policies by name. Every command, the services and the simulator read them here.

A policy is imported when it is built (`factory.build_policy`), so that a command that only needs the names starts
quickly. An installed package adds one by an entry point.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Literal

from shared.errors import BadInput


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyEntry:
    """One policy, and its requirements."""

    policy: str  # MODULE:CLASS
    uses_estimates: bool = False  # asks the step predictor; in a cell without one, one-shot estimates
    learns_difficulty: bool = True  # a request's own steps correct its one-shot estimate
    needs_profile: bool = False  # serves only instances that register a latency profile
    one_threshold: bool = False  # all requests have the setting `threshold`; `thresholds` is not used


# One threshold; the instance with the fewest tokens; no moves
_FIXED = PolicyEntry(policy="services.scheduler.policies.fixed:FixedThresholdPolicy", one_threshold=True)
POLICIES: dict[str, PolicyEntry] = {
    # One threshold for all by the booked work, lower where a deadline needs it; batches are chosen
    "dilaserve": PolicyEntry(
        policy="services.scheduler.policies.dilaserve:DiLaServePolicy", uses_estimates=True, needs_profile=True
    ),
    # DiLaServe as the paper describes it: no step in reserve
    "paper": PolicyEntry(
        policy="services.scheduler.policies.paper:PaperPolicy",
        uses_estimates=True,
        learns_difficulty=False,
        needs_profile=True,
    ),
    # As `fixed`, but a request moves at its recompute steps
    "llumnix": PolicyEntry(policy="services.scheduler.policies.fixed:LlumnixPolicy", one_threshold=True),
    "infaas": _FIXED,
    "fixed": _FIXED,
}
DEFAULT_POLICY = "dilaserve"
GROUP = "dilaserve.policies"  # of entry points; each has the policy's name, and names a PolicyEntry


def installed_policies(taken: Mapping[str, PolicyEntry]) -> dict[str, PolicyEntry]:
    """The policies of installed packages, by name. Raises: BadInput if an entry point names no PolicyEntry, or has a
    `taken` name."""
    found: dict[str, PolicyEntry] = {}
    for point in entry_points(group=GROUP):
        where = f"the entry point {point.name} = {point.value} in {GROUP}"
        try:
            entry = point.load()
        except (ImportError, AttributeError) as error:
            raise BadInput(f"{where} cannot be loaded: {error}") from None
        if not isinstance(entry, PolicyEntry):
            raise BadInput(f"{where} is a {type(entry).__name__}; accepted: a PolicyEntry")
        if point.name in taken or point.name in found:
            raise BadInput(f"{where}: another policy has this name")
        found[point.name] = entry
    return found


INSTALLED = installed_policies(POLICIES)
POLICIES |= INSTALLED

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
