"""Counts since the scheduler's start."""

from dataclasses import dataclass, fields

from shared.messages.requests import OutcomeStatus, ServingStats


@dataclass(slots=True)
class Totals:
    """The fields that SchedulerStats has, too, are described there."""

    arrived: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    rejected: int = 0
    refused: int = 0
    slo_met: int = 0
    migrations: int = 0
    steps: int = 0
    tokens: int = 0
    predictions: int = 0
    predictor_fallbacks: int = 0
    threshold_tokens: float = 0.0  # sum over the unmasked tokens of the threshold used
    learnt_steps: int = 0  # of requests without labels, whose steps the threshold decides
    expected_steps: float = 0.0  # that the tokens of those steps take at the thresholds used, at the mean rates
    cycles: int = 0
    cycle_s: float = 0.0  # seconds that the cycles took

    def count_finished(self, status: OutcomeStatus, stats: ServingStats | None) -> None:
        """Count a request that has ended."""
        self.completed += status is OutcomeStatus.COMPLETED
        self.cancelled += status is OutcomeStatus.CANCELLED
        self.failed += status is OutcomeStatus.FAILED
        self.refused += status is OutcomeStatus.REFUSED
        if stats is not None:
            self.migrations += stats.migrations
            self.slo_met += status is OutcomeStatus.COMPLETED and stats.slo_met

    def since(self, earlier: "Totals") -> "Totals":
        """The difference to earlier totals."""
        return Totals(**{f.name: getattr(self, f.name) - getattr(earlier, f.name) for f in fields(self)})
