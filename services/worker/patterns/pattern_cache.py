"""The patterns of an instance's requests, compiled in a thread of their own while iterations run."""

from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from services.worker.patterns.state_sets import StateSets
from services.worker.patterns.token_automaton import TokenTable, tokenize
from shared.errors import BadInput
from shared.patterns.automaton import compile_pattern

MAX_PATTERNS = 32  # compiled ones that are kept


class PatternSource(Protocol):
    """Compiled patterns, as the engine uses them."""

    def find(self, pattern: str) -> StateSets | None:
        """None: not compiled yet. Raises: BadInput if it cannot be compiled."""


class PatternCompiler:
    """Compiles each pattern when it is first needed."""

    def __init__(self, read_tokens: Callable[[], TokenTable]) -> None:
        """`read_tokens` reads the vocabulary, once and for the first pattern; it may raise BadInput."""
        self._read_tokens = read_tokens
        self._tokens: TokenTable | None = None
        self._found: dict[str, StateSets] = {}

    def find(self, pattern: str) -> StateSets:
        """As PatternSource."""
        if pattern not in self._found:
            self._found[pattern] = self.compile(pattern)
        return self._found[pattern]

    def compile(self, pattern: str) -> StateSets:
        """Compile a pattern for the vocabulary. Raises: BadInput if it cannot be compiled."""
        if self._tokens is None:
            self._tokens = self._read_tokens()
        try:
            return StateSets(tokenize(compile_pattern(pattern), self._tokens))
        except (MemoryError, OSError) as error:
            raise BadInput(f"the pattern cannot be compiled now: {error!r}", "pattern") from error


class PatternCache:
    """Compiles each pattern once, in its own thread."""

    def __init__(self, compiler: PatternCompiler) -> None:
        self.on_ready: Callable[[], None] = lambda: None  # called from that thread when a pattern is compiled
        self._compiler = compiler
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="patterns")
        self._found: OrderedDict[str, Future[StateSets]] = OrderedDict()

    def find(self, pattern: str) -> StateSets | None:
        """As PatternSource."""
        future = self._found.get(pattern)
        if future is None:
            future = self._found[pattern] = self._thread.submit(self._compiler.compile, pattern)
            future.add_done_callback(lambda _: self.on_ready())
            if len(self._found) > MAX_PATTERNS:
                self._found.popitem(last=False)
        self._found.move_to_end(pattern)
        return future.result() if future.done() else None

    def close(self) -> None:
        """Wait for the pattern in progress, and compile no other."""
        self._thread.shutdown(cancel_futures=True)
