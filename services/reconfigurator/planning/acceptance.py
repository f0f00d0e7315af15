"""When to reconfigure: only if it is worth the while."""

from math import inf

from services.reconfigurator.planning.plan import Capacity, Decision
from services.reconfigurator.planning.solver import SolverStatus

MIN_GAIN = 0.10  # the paper's
MIN_SLACK = 0.01  # of the SLOs: where hardly any slack is, a tenth of it may be the solver's tolerance
MIN_ROOM = 2.0  # times the workload; what sustains less is not taken in place of what sustains more
ENOUGH_ROOM = 10.0  # times the workload; what sustains so much need not sustain more
EQUAL = 1e-6  # relative: objectives that differ by less are the same


def should_reconfigure(
    proposal: Capacity | SolverStatus,
    current: Capacity | SolverStatus,
    *,
    whole_slack_s: float,
    fallen_back: bool,
    growing: bool = False,
    lighter: Capacity | SolverStatus = SolverStatus.UNKNOWN,
) -> Decision:
    """Whether the proposal improves enough on the current instances, evaluated under the same workload.

    Where these cannot meet every SLO, `lighter` is their evaluation under 1 / (1 + LEAST_GAIN) of the workload.
    `whole_slack_s` is the slack of requests that take no time: the sum over classes of RPS_k SLO_k. `fallen_back`
    tells whether the current instances are those of the fallback.
    Source: "Practical Consideration". Departures: a gain of slack must also be LEAST_SLACK of the whole; where the
    workload is `growing`, room up to ROOM_ENOUGH is the secondary objective in place of slack; near its limit the
    cluster gives up no room, as with one batch size a TP degree Stage 1 makes too much of a mix of degrees there.
    """
    if proposal is SolverStatus.UNKNOWN:
        return Decision(take=False, reason="no plan was found within the time limit")
    if not isinstance(proposal, Capacity):
        return _fall_back(fallen_back=fallen_back)
    if current is SolverStatus.UNKNOWN:
        return Decision(take=False, reason="the current instances could not be evaluated within the time limit")
    if not isinstance(current, Capacity):
        return _relieve(proposal, lighter)
    return _compare(proposal, current, MIN_SLACK * whole_slack_s, growing=growing)


def _fall_back(*, fallen_back: bool) -> Decision:
    why = "no configuration meets every SLO"
    if fallen_back:
        return Decision(take=False, reason=f"{why}, and the smallest TP degree runs everywhere already")
    return Decision(take=True, reason=f"{why}; the smallest TP degree everywhere has the highest throughput")


def _relieve(proposal: Capacity, lighter: Capacity | SolverStatus) -> Decision:
    """Replace instances that cannot meet every SLO, unless that is for a gain too small to give up room for."""
    if isinstance(lighter, Capacity):
        sustained = lighter.sustains / (1 + MIN_GAIN)
        if _gives_up_room(proposal.sustains, sustained):
            why = f"the current instances meet every SLO of {1 / (1 + MIN_GAIN):.0%} of the load, and sustain more"
            return Decision(take=False, reason=f"{why} of it: {sustained:.2f} to {proposal.sustains:.2f} times")
    return Decision(take=True, reason="the current instances cannot meet every SLO; the proposal can")


def _compare(proposal: Capacity, current: Capacity, least_slack_s: float, *, growing: bool) -> Decision:
    quality = _gain(proposal.mean_threshold, current.mean_threshold)
    slack = _gain(proposal.slack_s, current.slack_s)
    room = _gain(min(proposal.sustains, ENOUGH_ROOM), min(current.sustains, ENOUGH_ROOM))
    figures = (
        f"mean threshold {current.mean_threshold:.4f} to {proposal.mean_threshold:.4f} ({quality:+.1%}), "
        f"SLO slack {current.slack_s:.4g} to {proposal.slack_s:.4g} ({slack:+.1%}), "
        f"sustains {current.sustains:.1f} to {proposal.sustains:.1f} times the load"
    )
    if _gives_up_room(proposal.sustains, current.sustains):
        return Decision(
            take=False, reason=f"less of the load could be sustained, and not {MIN_ROOM:g} times it: {figures}"
        )
    if quality >= MIN_GAIN - EQUAL:
        return Decision(take=True, reason=f"the primary objective improves by at least {MIN_GAIN:.0%}: {figures}")
    more_slack = slack >= MIN_GAIN - EQUAL and proposal.slack_s - current.slack_s >= least_slack_s
    if quality >= -EQUAL and (room >= MIN_GAIN - EQUAL if growing else more_slack):
        return Decision(take=True, reason=f"the secondary objective improves by at least {MIN_GAIN:.0%}: {figures}")
    return Decision(take=False, reason=f"neither objective improves by {MIN_GAIN:.0%}: {figures}")


def _gives_up_room(proposed: float, current: float) -> bool:
    """Whether less of the load could be sustained, and not LEAST_ROOM times it."""
    return proposed < min(current, MIN_ROOM) * (1 - EQUAL)


def _gain(new: float, old: float) -> float:
    """Relative; from nothing to something it is infinite."""
    if abs(new - old) <= EQUAL * max(abs(new), abs(old)):
        return 0.0
    return (new - old) / abs(old) if old else inf
