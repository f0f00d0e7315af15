"""Tunes the garbage collector of a service."""

import gc


def freeze_startup_objects() -> None:
    """Exempt the objects of start-up, mostly modules: each full collection would scan them, a pause of tenths of a
    second."""
    gc.collect()
    gc.freeze()
