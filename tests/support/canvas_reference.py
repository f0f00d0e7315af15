"""The authors' DiffusionGemma on random weights, with the project's random numbers."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from services.worker.model.canvas_runner import random_tokens
from services.worker.model.sampling import Noise, gumbel


@dataclass
class Reference:
    """One model, and what its last decoding did."""

    model: Any
    canvas: int
    first_logits: list[Tensor] = field(default_factory=list)  # [C, V], of the first step of each canvas
    forwards: int = 0

    def decode(self, prompt: list[int], output: int, bound: float) -> list[int]:
        """The output, without the padding after an end of text."""
        from transformers.models.diffusion_gemma import generation_diffusion_gemma  # noqa: PLC0415 - slow to import

        self.first_logits, self.forwards = [], 0
        with self._own_noise(len(prompt)):
            found = self.model.generate(
                torch.tensor([prompt]),
                max_new_tokens=output,
                sampler_config=generation_diffusion_gemma.EntropyBoundSamplerConfig(entropy_bound=bound),
                pad_token_id=None,
                cache_implementation=None,
            )
        return list(found.sequences[0, len(prompt) :].tolist())

    @contextmanager
    def _own_noise(self, prompt: int) -> Iterator[None]:
        """Count the forwards, and draw as the project does: by canvas, step, position and token."""
        canvas, state = self.canvas, {"start": prompt - self.canvas, "step": 0}
        positions = torch.arange(canvas)
        forward = self.model.forward

        def randint(*, high: int, size: tuple[int, int], **_: Any) -> Tensor:
            return random_tokens(0, state["step"], state["start"] + positions, high).view(size)

        def multinomial(probabilities: Tensor, num_samples: int) -> Tensor:
            assert num_samples == 1
            rows = torch.ones(canvas, dtype=torch.int64)
            noise = Noise(rows.double(), rows * 0, rows * state["step"], state["start"] + positions)
            drawn = (probabilities.double().log() + gumbel(noise, torch.arange(probabilities.shape[1]))).argmax(-1)
            state["step"] += 1
            return drawn.unsqueeze(1)

        def counted(*args: Any, **kwargs: Any) -> Any:
            found = forward(*args, **kwargs)
            self.forwards += 1
            if not state["step"]:
                self.first_logits.append(found.logits[0])
            return found

        encode = self.model.model.encoder.forward

        def encoded(*args: Any, **kwargs: Any) -> Any:
            state["start"], state["step"] = state["start"] + canvas, 0
            return encode(*args, **kwargs)

        with (
            patch.object(torch, "randint", randint),
            patch.object(torch, "multinomial", multinomial),
            patch.object(self.model, "forward", counted),
            patch.object(self.model.model.encoder, "forward", encoded),
        ):
            yield


def open_reference(directory: Path) -> Reference:
    """The authors' model with the weights of a checkpoint."""
    from transformers import DiffusionGemmaForBlockDiffusion  # noqa: PLC0415 - slow to import

    model = DiffusionGemmaForBlockDiffusion.from_pretrained(directory, dtype=torch.float32).eval()
    return Reference(model, model.config.canvas_length)
