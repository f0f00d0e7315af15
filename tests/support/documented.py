"""Which documents have their commands run, and which of those commands are the business of other tests."""

from tests.support.shell_blocks import ROOT, Block, commands

RUN = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

# A command as the documents show it, and the test that gives it (with other paths).
ELSEWHERE: dict[str, str] = {}


def exists(test: str) -> bool:
    """Whether there is a test of this name, FILE::NAME."""
    path, _, name = test.partition("::")
    return (ROOT / path).is_file() and f"def {name}(" in (ROOT / path).read_text()


def to_run(block: Block) -> bool:
    """Whether the block is to be run with the others of its document. Raises: AssertionError if only a part is."""
    if block.reason is not None:
        return False
    left = [command.text in ELSEWHERE for command in commands(block)]
    assert all(left) or not any(left), f"{block.where}: other tests give only some of these commands; split the block"
    return not (left and all(left))
