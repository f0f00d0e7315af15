"""The canvas as it denoises, for clients that draw it: what each step unmasked, and what it guessed for the rest."""

from services.gateway.api.replies import Json
from services.gateway.api.text_stream import Decode
from services.gateway.inflight import Unmasked


def canvas(unmasked: Unmasked, guessed: Unmasked | None, decode: Decode) -> Json:
    """The event of one step: the cells that it committed, and its guesses for positions that are masked still.

    A cell's text is its own token's: empty for special tokens, and U+FFFD for a part of a character; the text of the
    stream is decoded as a whole.
    """
    cells = _cells(unmasked, decode)
    if guessed is not None and guessed.step == unmasked.step:
        cells += _cells(guessed, decode)
    return {"object": "dilaserve.canvas", "step": unmasked.step, "cells": cells}


def _cells(tokens: Unmasked, decode: Decode) -> list[Json]:
    columns = zip(tokens.positions.tolist(), tokens.tokens.tolist(), tokens.confidences.tolist(), strict=True)
    return [
        {
            "position": position,
            "token": token,
            "text": decode([token]),
            "confidence": confidence,
            "committed": tokens.committed,
        }
        for position, token, confidence in columns
    ]
