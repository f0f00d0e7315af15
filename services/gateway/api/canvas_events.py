"""Canvas events: the tokens that each step committed and its guesses for positions that are still masked."""

from services.gateway.api.replies import Json
from services.gateway.api.text_stream import Decode
from services.gateway.inflight import StepTokens


def canvas(committed: StepTokens, guessed: StepTokens | None, decode: Decode) -> Json:
    """The event of one step; `guessed` is left out if it is of another step.

    A cell's text is its own token's: empty for special tokens, U+FFFD for a part of a character. The text of the stream
    is decoded as a whole.
    """
    cells = _cells(committed, decode)
    if guessed is not None and guessed.step == committed.step:
        cells += _cells(guessed, decode)
    return {"object": "dilaserve.canvas", "step": committed.step, "cells": cells}


def _cells(tokens: StepTokens, decode: Decode) -> list[Json]:
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
