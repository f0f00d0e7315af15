"""The comparison of a command's figure between a commit and the working tree."""

import subprocess
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from experiments import compare_commits
from experiments.compare_commits import NUMBER, figure, is_worse, main, summary

app = typer.Typer()
app.command()(main)


@pytest.mark.parametrize(
    ("output", "pattern", "value"),
    [
        ("38126.5\n", NUMBER, 38126.5),
        ("first 12, then 1.5e-3 s", NUMBER, 0.0015),
        ("| 16 | 41,250 items/s |", r"([\d,]+) items/s", 41250.0),
        ("a 7 b 8", r"\d", 8.0),
    ],
)
def test_the_last_match_is_the_figure(output: str, pattern: str, value: float) -> None:
    assert figure(output, pattern) == value


def test_an_output_without_a_figure_is_an_error() -> None:
    with pytest.raises(ValueError, match="nothing in the output matches"):
        figure("no number", NUMBER)


@pytest.mark.parametrize(
    ("median", "higher_is_better", "worse"),
    [(0.94, True, True), (0.96, True, False), (1.2, True, False), (1.06, False, True), (0.9, False, False)],
)
def test_only_a_median_beyond_the_limit_is_worse(median: float, higher_is_better: bool, worse: bool) -> None:
    assert is_worse([0.5, median, 2.0], 0.05, higher_is_better=higher_is_better) is worse


def test_the_summary_has_median_and_range() -> None:
    assert summary([1.02, 0.97, 1.0]) == "median 1.000, range 0.970 to 1.020"


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A commit whose program prints 100, and a working tree in which it prints 90."""
    root = tmp_path / "repository"
    root.mkdir()
    program, module = root / "rate.py", root / "module.py"
    program.write_text("import module\nprint(module.RATE)\n")
    module.write_text("RATE = 100\n")
    author = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for command in (["init", "--quiet"], ["add", "."], [*author, "commit", "--quiet", "-m", "Add a rate"]):
        subprocess.run(["git", *command], cwd=root, check=True)
    module.write_text("RATE = 90\n")
    monkeypatch.chdir(root)
    return root


def worktrees(repository: Path) -> int:
    listed = subprocess.run(["git", "worktree", "list"], cwd=repository, capture_output=True, text=True, check=True)
    return len(listed.stdout.splitlines())


@pytest.mark.parametrize(
    ("options", "status"), [([], 1), (["--limit", "0.2"], 0), (["--lower-is-better"], 0), (["--figure", "x"], 2)]
)
def test_a_commit_is_compared_with_the_working_tree(repository: Path, options: list[str], status: int) -> None:
    arguments = ["HEAD", "--pairs", "2", *options, "--", "python", "rate.py"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == status
    assert status == 2 or "| 2 | 100 | 90 | 0.900 |" in result.output
    assert worktrees(repository) == 1


def test_the_worktree_is_removed_after_ctrl_c(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(tree: Path, *_: object) -> float:
        assert (tree / "rate.py").exists()
        raise KeyboardInterrupt

    monkeypatch.setattr(compare_commits, "run", interrupted)
    assert CliRunner().invoke(app, ["HEAD", "--", "true"]).exit_code == 130
    assert worktrees(repository) == 1


def test_an_unknown_commit_is_an_error(repository: Path) -> None:
    result = CliRunner().invoke(app, ["nothing", "--", "true"])
    assert result.exit_code == 2
