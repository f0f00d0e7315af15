"""The step pipeline with its preconditions asserted: every transition starts from a state of the README's diagram."""

from services.scheduler.state.step_pipeline import IDLE, SENT, StepPipeline
from shared.arrays import Bool, Float64, Int32, Int64


class CheckedPipeline(StepPipeline):
    """For tests; assign it to a pipeline's `__class__`."""

    def send(self, rows: Int64, thresholds: Float64, kinds: Int32, now_s: float, batches: Int64) -> None:
        self._assert_state(rows, IDLE)
        super().send(rows, thresholds, kinds, now_s, batches)

    def send_ahead(self, rows: Int64, thresholds: Float64, across: Bool, now_s: float) -> None:
        self._assert_state(rows, SENT)
        super().send_ahead(rows, thresholds, across, now_s)

    def complete(self, rows: Int64, block_ended: Bool) -> None:
        assert (self.state[rows] >= SENT).all()
        super().complete(rows, block_ended)

    def _assert_state(self, rows: Int64, state: int) -> None:
        assert len(set(rows.tolist())) == len(rows)
        assert (self.state[rows] == state).all()
