"""The instructions of the CPU, and the advice that follows from them."""

import torch

from dilaserve.stack.checks import machine
from shared.cpu import BFLOAT16_GAIN, has_bfloat16
from shared.gpus import num_gpus


def test_a_cpu_that_torch_uses_for_bfloat16_has_its_instructions() -> None:
    if torch.cpu._is_avx512_bf16_supported():
        assert has_bfloat16()


def test_doctor_names_the_faster_number_format_where_the_cpu_has_it() -> None:
    [gpus] = [finding for finding in machine({}) if finding.subject == "GPUs"]
    assert gpus.ok or num_gpus()
    assert (BFLOAT16_GAIN in gpus.detail) == (has_bfloat16() and not num_gpus())
