"""The garbage collector of a process that serves."""

import gc


def freeze_startup_objects() -> None:
    """Exempt what start-up has made, modules above all: each full collection would look through it anew, a pause of
    tenths of a second."""
    gc.collect()
    gc.freeze()
