"""The counted cost of a step, on a small model."""

import dataclasses

from experiments.cuda_roofline import LLADA_8B
from experiments.step_cost import KINDS, MAX_OPERATIONS_A_LAYER, runner_of, step_cost

SMALL = dataclasses.replace(
    LLADA_8B, num_layers=2, width=128, num_heads=4, num_kv_heads=4, head_dim=32, rotary_dim=32, mlp_width=256,
    vocab_size=1000, mask_token_id=999
)  # fmt: skip


def test_a_mixed_batch_of_32_lengths_has_few_operations_and_one_pass() -> None:
    cost = step_cost(SMALL, runner_of(SMALL), *KINDS["mixed"](32))
    assert 10 * SMALL.num_layers < cost.layer_operations.total() <= MAX_OPERATIONS_A_LAYER * SMALL.num_layers
    assert (cost.kv_passes, cost.synchronisations, cost.copies_in) == (SMALL.num_layers, 1, 1)


def test_the_operations_of_a_layer_do_not_grow_with_the_requests() -> None:
    runner = runner_of(SMALL)
    few, many = (step_cost(SMALL, runner, *KINDS["mixed"](count)).layer_operations for count in (8, 32))
    assert few == many


def test_matrix_products_count_by_their_sizes() -> None:
    cost = step_cost(SMALL, runner_of(SMALL), 0, 1)
    tokens, rows, width, mlp = 512 + 256, 32, SMALL.width, SMALL.mlp_width  # rows: the last layer ends with these
    into, after = width * 3 * width, width * width + 3 * width * mlp
    products = tokens * (2 * into + after) + rows * (after + width * SMALL.vocab_size)
    assert cost.flops == 2 * products
