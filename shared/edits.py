"""Edits: steps may change tokens of the current block that are no longer masked, as LLaDA2.1's decoding does.

A token changes to one whose probability is above the edit threshold. The block ends with the first step that begins
without masks and changes nothing, or after MAX_POST_STEPS steps that began without masks. Its tokens are final then.
"""

from typing import Any, overload

from shared.arrays import Bool, Int32
from shared.errors import BadInput
from shared.messages.instances import ModelCard
from shared.messages.requests import Request

NO_EDITS = 1.0  # the edit threshold at which no token changes


@overload
def ends_block(changes: int, post_steps: int, max_post_steps: int) -> bool: ...
@overload
def ends_block(changes: Int32, post_steps: Int32, max_post_steps: int) -> Bool: ...
def ends_block(changes: Any, post_steps: Any, max_post_steps: int) -> Any:
    """Whether a step that began without masks ends its block. `changes`: tokens that it changed; `post_steps`: steps of
    the block that began without masks, this one included."""
    return (changes == 0) | (post_steps >= max_post_steps)


def edit_threshold_for(request: Request, card: ModelCard, default: float) -> float:
    """The edit threshold of a request: its own; else the cell's `default`, or NO_EDITS if the text has a form, labels,
    pinned tokens, penalties or a bias.

    Raises: BadInput if the request asks for edits that it cannot have.
    """
    is_constrained = bool(request.pattern or request.choices or request.pinned) or request.changes_logits
    own = request.edit_threshold
    if own is None:
        return NO_EDITS if is_constrained or card.edit_threshold is None else default
    if own < NO_EDITS and card.edit_threshold is None:
        raise BadInput(f"{card.name} does not change tokens; accepted: 1, or leave it out", "edit_threshold")
    if own < NO_EDITS and is_constrained:
        raise BadInput(
            "tokens cannot change in a text with a form, labels, given tokens, penalties or logit_bias; "
            "accepted there: 1, or leave it out",
            "edit_threshold",
        )
    return own
