"""The progress of a command."""

from pathlib import Path

import pytest

from dilaserve import outputs
from dilaserve.outputs import add_bar, check_figure, open_progress
from shared.errors import BadInput
from tests.support.waiting import reached


async def test_progress_is_lines_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(outputs, "LINE_S", 0.01)
    with open_progress() as progress:
        advance = add_bar(progress, "requests", 5)
        advance()
        read: list[str] = []

        def is_printed() -> bool:
            read.append(capsys.readouterr().err)
            return "requests: 1 of 5, " in "".join(read)

        await reached(is_printed)


def test_a_short_command_prints_no_progress(capsys: pytest.CaptureFixture[str]) -> None:
    with open_progress() as progress:
        add_bar(progress, "requests", 5)()
    assert capsys.readouterr().err == ""


def test_a_figure_needs_the_package_that_draws_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_figure("--plot", tmp_path / "plot.png")
    monkeypatch.setattr(outputs, "find_spec", lambda _: None)
    check_figure("--plot", None)
    with pytest.raises(BadInput, match=r"needs matplotlib: pip install --editable '.\[plots\]'"):
        check_figure("--plot", tmp_path / "plot.png")
