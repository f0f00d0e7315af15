"""Decides whether a planned reconfiguration is worth its cost."""

from math import inf, isclose

from services.reconfigurator.planning.plan import Capacity, Decision
from services.reconfigurator.planning.solver import SolverStatus

UNMET = "no configuration meets every SLO"
MIN_GAIN = 0.10  # relative gain of an objective, the paper's
MIN_SLACK_GAIN = 0.01  # share of the SLOs; MIN_GAIN of a tiny slack may be the solver's tolerance
# Room: how many times the workload instances sustain.
MIN_ROOM = 2.0  # a proposal with less room than this and than the current instances is refused
MAX_ROOM = 10.0  # more room than this counts as no gain
TOLERANCE = 1e-6  # relative; objectives that differ by less are equal


def should_reconfigure(
    proposal: Capacity | SolverStatus,
    current: Capacity | SolverStatus,
    *,
    whole_slack_s: float,
    fallen_back: bool,
    growing: bool = False,
    current_at_less_load: Capacity | SolverStatus = SolverStatus.UNKNOWN,
) -> Decision:
    """Whether the proposal improves enough on the current instances, evaluated under the same workload.

    If these cannot meet every SLO, `current_at_less_load` is their evaluation under 1 / (1 + MIN_GAIN) of the workload.
    `whole_slack_s` is the slack of requests that take no time: the sum over classes of RPS_k SLO_k. `fallen_back`:
    the current instances are those of the fallback.
    Source: "Practical Consideration". Departures: a gain of slack must also be MIN_SLACK_GAIN of the whole; if the
    workload is `growing`, room up to MAX_ROOM replaces slack as the secondary objective; near its limit the cluster
    gives up no room, because Stage 1 with one batch size per TP degree overrates a mix of degrees there.
    """
    if proposal is SolverStatus.UNKNOWN:
        return Decision(take=False, reason="no plan was found within the time limit")
    if not isinstance(proposal, Capacity):
        if fallen_back:
            return Decision(take=False, reason=f"{UNMET}, and the smallest TP degree runs everywhere already")
        return Decision(take=True, reason=f"{UNMET}; the smallest TP degree everywhere has the highest throughput")
    if current is SolverStatus.UNKNOWN:
        return Decision(take=False, reason="the current instances could not be evaluated within the time limit")
    if not isinstance(current, Capacity):
        return _replace_failing(proposal, current_at_less_load)
    return _compare(proposal, current, MIN_SLACK_GAIN * whole_slack_s, growing=growing)


def _replace_failing(proposal: Capacity, at_less_load: Capacity | SolverStatus) -> Decision:
    """Replace instances that cannot meet every SLO, unless the gain is too small to give up room for."""
    if isinstance(at_less_load, Capacity):
        current_room = at_less_load.sustains / (1 + MIN_GAIN)
        if _gives_up_room(proposal.sustains, current_room):
            why = f"the current instances meet every SLO of {1 / (1 + MIN_GAIN):.0%} of the load, and sustain more"
            return Decision(take=False, reason=f"{why} of it: {current_room:.2f} to {proposal.sustains:.2f} times")
    return Decision(take=True, reason="the current instances cannot meet every SLO; the proposal can")


def _compare(proposal: Capacity, current: Capacity, min_slack_gain_s: float, *, growing: bool) -> Decision:
    quality = _gain(proposal.mean_threshold, current.mean_threshold)
    slack = _gain(proposal.slack_s, current.slack_s)
    room = _gain(min(proposal.sustains, MAX_ROOM), min(current.sustains, MAX_ROOM))
    figures = (
        f"mean threshold {current.mean_threshold:.4f} to {proposal.mean_threshold:.4f} ({quality:+.1%}), "
        f"SLO slack {current.slack_s:.4g} to {proposal.slack_s:.4g} ({slack:+.1%}), "
        f"sustains {current.sustains:.1f} to {proposal.sustains:.1f} times the load"
    )
    if _gives_up_room(proposal.sustains, current.sustains):
        return Decision(
            take=False, reason=f"less of the load could be sustained, and not {MIN_ROOM:g} times it: {figures}"
        )
    if quality >= MIN_GAIN - TOLERANCE:
        return Decision(take=True, reason=f"the primary objective improves by at least {MIN_GAIN:.0%}: {figures}")
    more_slack = slack >= MIN_GAIN - TOLERANCE and proposal.slack_s - current.slack_s >= min_slack_gain_s
    if quality >= -TOLERANCE and (room >= MIN_GAIN - TOLERANCE if growing else more_slack):
        return Decision(take=True, reason=f"the secondary objective improves by at least {MIN_GAIN:.0%}: {figures}")
    return Decision(take=False, reason=f"neither objective improves by {MIN_GAIN:.0%}: {figures}")


def _gives_up_room(proposed: float, current: float) -> bool:
    return proposed < min(current, MIN_ROOM) * (1 - TOLERANCE)


def _gain(new: float, old: float) -> float:
    """The relative gain; infinite from 0."""
    if isclose(new, old, rel_tol=TOLERANCE):
        return 0.0
    return (new - old) / abs(old) if old else inf
