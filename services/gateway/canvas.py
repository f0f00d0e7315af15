"""The canvas as it denoises: what each step unmasked, for clients that draw it."""

from services.gateway.calls import Unmasked
from services.gateway.replies import Json
from services.gateway.streaming import Decode


def canvas(unmasked: Unmasked, decode: Decode) -> Json:
    """The event of one step. A cell's text is its own token's: empty for special tokens, and U+FFFD for a part of a
    character; the text of the stream is decoded as a whole."""
    cells = zip(unmasked.positions.tolist(), unmasked.tokens.tolist(), unmasked.confidences.tolist(), strict=True)
    return {
        "object": "dilaserve.canvas",
        "step": unmasked.step,
        "cells": [
            {"position": position, "token": token, "text": decode([token]), "confidence": confidence, "committed": True}
            for position, token, confidence in cells
        ],
    }
