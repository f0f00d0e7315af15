"""The room of a request's output: whole blocks after its prompt, as many as the model's maximum length allows."""

from dataclasses import dataclass

from shared.errors import TooLong
from shared.messages.instances import ModelCard
from shared.messages.requests import DEFAULT_BLOCK_LENGTH, MAX_BLOCK_LENGTH, MAX_OUTPUT_TOKENS
from shared.text import round_up_to_blocks


@dataclass(frozen=True, slots=True)
class OutputRoom:
    """The output's blocks. `offset`: prompt tokens within the first one. `tokens`: the longest output."""

    prompt_tokens: int
    block_length: int
    offset: int
    tokens: int

    def whole_blocks(self, tokens: int) -> int:
        """`tokens` rounded up to whole blocks, at most the longest output."""
        return min(round_up_to_blocks(tokens, self.block_length, self.offset), self.tokens)


def output_room(
    card: ModelCard, prompt_tokens: int, block_length: int | None, label_tokens: int, prompt_field: str
) -> OutputRoom:
    """`block_length`: the client's; None: the model's. `label_tokens`: of the longest label of a choice with its end
    token; 0: no choice. Raises: TooLong for `prompt_field`."""
    block_length = block_length or card.block_length
    if not block_length:
        block_length = DEFAULT_BLOCK_LENGTH
        if label_tokens > block_length:  # labels within one block take one step
            block_length = min(label_tokens, MAX_BLOCK_LENGTH)
    offset = card.block_offset(prompt_tokens, block_length)
    room = min(card.max_length - prompt_tokens, MAX_OUTPUT_TOKENS)
    tokens = (room + offset) // block_length * block_length - offset
    if tokens < 1:
        raise TooLong(
            f"{prompt_field} has {prompt_tokens} tokens; the model's maximum is {card.max_length} with the output, "
            f"which has at least one block of {block_length}",
            prompt_field,
        )
    return OutputRoom(prompt_tokens, block_length, offset, tokens)
