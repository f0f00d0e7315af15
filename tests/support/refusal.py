"""Wrong usage of a command: one line on standard error, exit status 2."""

import pytest

from dilaserve.cli import run


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Run `dilaserve` with arguments that it refuses. Returns: the line of its error."""
    status, output = run([*map(str, arguments)]), capsys.readouterr()
    assert (status, output.out, output.err.count("\n")) == (2, "", 1), output.err
    return output.err
