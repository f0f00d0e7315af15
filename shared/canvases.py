"""Models that denoise canvases: each step draws all tokens of a block again, and the last one writes them together."""

from shared.errors import BadInput
from shared.messages.instances import ModelCard
from shared.messages.requests import Request, Sampling

OWN_SAMPLING = ("temperature", "top_p", "top_k", "min_p")  # replaced by the checkpoint's schedule


def without_effect(request: Request, card: ModelCard) -> list[str]:
    """The request's fields that the model does not read."""
    usual = Sampling()
    return [name for name in OWN_SAMPLING if card.canvas_steps and getattr(request, name) != getattr(usual, name)]


def check_for_canvases(request: Request, card: ModelCard, form_field: str = "") -> None:
    """Raises: BadInput for a request that a model with canvases does not serve. `form_field`: the client's name of the
    text's form; empty: the request's own."""
    if not card.canvas_steps:
        return
    for field, what, is_given in (
        (form_field or "pattern", "no form of the text", bool(request.pattern)),
        (form_field or "choices", "no labels", bool(request.choices)),
        ("pinned", "no given tokens in the output", bool(request.pinned)),
    ):
        if is_given:
            raise BadInput(
                f"{card.name} draws all tokens of a block again in each step: it takes {what}; leave it out", field
            )
    if request.block_length != card.block_length:
        message = f"{card.name} has blocks of {card.block_length} tokens, got {request.block_length}; leave it out"
        raise BadInput(message, "block_length")
