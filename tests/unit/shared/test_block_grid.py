"""Block-causal models: their cards, and outputs that end with a block of the grid."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.worker.model.families import parse_config
from shared.model_card import read_model_card
from shared.text import round_up_to_blocks
from tests.builders import model_card
from tests.support.golden import COPY

PUBLISHED = json.loads((COPY / "real_configs.json").read_text())
BLOCK_CAUSAL = [name for name, entry in PUBLISHED.items() if name.startswith(("sdar", "llada2")) and entry["config"]]


@pytest.mark.parametrize("name", BLOCK_CAUSAL)
def test_the_card_of_a_published_model_is_what_the_worker_reads(name: str, tmp_path: Path) -> None:
    raw = PUBLISHED[name]["config"]
    (tmp_path / "config.json").write_text(json.dumps(raw))
    card, config = read_model_card(tmp_path, "m"), parse_config(raw)
    assert card.block_length == config.block_length > 0
    assert (card.mask_token_id, card.eos_token_id) == (config.mask_token_id, config.eos_token_id)
    assert (card.vocab_size, card.max_length) == (config.vocab_size, config.max_length)


@given(prompt=st.integers(1, 500), output=st.integers(1, 500), length=st.integers(1, 64), usual=st.sampled_from([0, 4]))
def test_an_output_ends_with_the_first_block_that_holds_it(prompt: int, output: int, length: int, usual: int) -> None:
    offset = model_card(block_length=usual).block_offset(prompt, length)
    rounded = round_up_to_blocks(output, length, offset)
    assert output <= rounded < output + length
    assert (rounded + (prompt if usual else 0)) % length == 0
