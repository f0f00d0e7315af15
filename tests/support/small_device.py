"""A device with memory for few tokens."""

import torch

from services.worker.model.forward_batch import ForwardBatch
from services.worker.model.model_runner import Runner, TokenPredictions


class SmallDevice(Runner):
    """Runs out of memory at more than `room` tokens in a batch."""

    room = 50

    def run(self, batch: ForwardBatch) -> TokenPredictions:
        if len(batch.tokens) > self.room:
            raise torch.OutOfMemoryError("too large")
        return super().run(batch)
