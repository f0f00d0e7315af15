"""What commands write: what cannot be written is said before the work, not after it."""

import os
from pathlib import Path

from shared.errors import BadInput

FIGURES = (".png", ".html")


def check_file(option: str, path: Path | None) -> None:
    """Raises: BadInput if a file of this path, where one is asked for, cannot be written."""
    if path is None:
        return
    if path.is_dir():
        raise BadInput(f"{option} {path}: it is a directory; accepted: a file")
    if not path.parent.is_dir():
        raise BadInput(f"{option} {path}: there is no directory {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise BadInput(f"{option} {path}: it may not be written")


def check_directory(option: str, path: Path) -> None:
    """Make the directory where it is missing. Raises: BadInput if that cannot be done, or it cannot be written."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"{option} {path}: {error.strerror}; accepted: a directory") from None
    if not os.access(path, os.W_OK):
        raise BadInput(f"{option} {path}: it may not be written")


def check_figure(option: str, path: Path | None) -> None:
    """As check_file. Raises: BadInput also for a suffix that no figure has."""
    check_file(option, path)
    if path is not None and path.suffix not in FIGURES:
        raise BadInput(f"{option} {path}: accepted: a file name that ends in {' or '.join(FIGURES)}")
