"""The patterns of an instance's requests, compiled in a thread of their own while iterations run."""

from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from services.worker.patterns.state_sets import StateSets
from services.worker.patterns.token_automaton import TokenTable, tokenize
from shared.errors import BadInput, RetryLater
from shared.patterns.automaton import compile_pattern

MAX_PATTERNS = 32  # compiled ones that are kept for later requests


class PatternSource(Protocol):
    """Compiled patterns, as the engine uses them."""

    def find(self, pattern: str) -> Future[StateSets]:
        """Done once the pattern is compiled. It, or this call, raises as PatternCompiler.compile."""


class PatternCompiler:
    """Compiles each pattern when it is first needed."""

    def __init__(self, read_tokens: Callable[[], TokenTable]) -> None:
        """`read_tokens` reads the vocabulary, once and for the first pattern; it may raise BadInput."""
        self._read_tokens = read_tokens
        self._tokens: TokenTable | None = None
        self._found: dict[str, Future[StateSets]] = {}

    def find(self, pattern: str) -> Future[StateSets]:
        """As PatternSource."""
        if pattern not in self._found:
            compiled = self.compile(pattern)
            self._found[pattern] = Future()
            self._found[pattern].set_result(compiled)
        return self._found[pattern]

    def compile(self, pattern: str) -> StateSets:
        """Compile a pattern for the vocabulary. Raises: BadInput if it cannot be compiled, RetryLater if the machine
        lacks memory, files or processes now."""
        try:
            if self._tokens is None:
                self._tokens = self._read_tokens()
            sets = StateSets(tokenize(compile_pattern(pattern), self._tokens))
            _ = sets.counted  # made in this thread, too
        except (MemoryError, OSError) as error:
            raise RetryLater(f"the pattern cannot be compiled now: {error!r}") from error
        except BadInput as error:
            raise BadInput(error.message, "pattern") from None
        except Exception as error:  # of one request, not of the instance
            raise BadInput(f"the pattern cannot be compiled: {error!r}", "pattern") from error
        return sets


class PatternCache:
    """Compiles patterns in its own thread, and keeps the last MAX_PATTERNS. It evicts none before its compilation ends,
    so it may hold more for a time. A request keeps a reference to its own, which eviction does not affect."""

    def __init__(self, compiler: PatternCompiler) -> None:
        self.on_ready: Callable[[], None] = lambda: None  # called from that thread when a pattern is compiled
        self._compiler = compiler
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="patterns")
        self._found: OrderedDict[str, Future[StateSets]] = OrderedDict()

    def find(self, pattern: str) -> Future[StateSets]:
        """As PatternSource."""
        future = self._found.get(pattern)
        if future is None or (future.done() and isinstance(future.exception(), RetryLater)):
            future = self._found[pattern] = self._thread.submit(self._compiler.compile, pattern)
            future.add_done_callback(lambda _: self.on_ready())
        self._found.move_to_end(pattern)
        done = [other for other, found in self._found.items() if found.done() and other != pattern]
        for other in done[: max(0, len(self._found) - MAX_PATTERNS)]:
            del self._found[other]
        return future

    def close(self) -> None:
        """Wait for the pattern in progress, and compile no other."""
        self._thread.shutdown(cancel_futures=True)
