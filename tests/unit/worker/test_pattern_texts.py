"""Requests with a pattern in the engine: their texts match, in every cache mode, alone and in company."""

import re
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache
from queue import SimpleQueue
from typing import Any

import msgspec
import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel
from tokenizers.models import BPE

from services.worker.engine import engine as engine_module
from services.worker.engine.cache_mode import CacheMode
from services.worker.engine.engine import Engine
from services.worker.engine.readers import READERS
from services.worker.engine.step_jobs import StepJob
from services.worker.engine.step_results import RanBatch
from services.worker.patterns import pattern_cache, state_sets
from services.worker.patterns.pattern_cache import PatternCache, PatternCompiler, PatternSource
from services.worker.patterns.state_sets import StateSets
from services.worker.patterns.token_automaton import TokenTable
from shared.errors import RetryLater
from shared.messages.steps import RequestState, StepFailure, StepJobs, StepKind
from shared.token_bytes import token_bytes
from tests.support.engines import engine_of
from tests.support.present import present
from tests.support.random_model import MASK_ID
from tests.support.steps import Decode, decode_together, jobs_for, read_results, run_step

END, VOCABULARY, BLOCK = 1, 64, 16
# Two tokens without text, then single characters, then pairs.
CHARACTERS = 'abcdefghijklmnopqrstuvwxyz0123456789{}:," '
TEXTS = [b"", b"", *(c.encode() for c in CHARACTERS), b"ab", b"12", b'":', b'{"', "é".encode(), "é".encode()[:1]]
TEXTS += [b""] * (VOCABULARY - len(TEXTS))
TABLE = TokenTable.of(TEXTS, [END], VOCABULARY)
LIMIT_S = 60.0
PATTERN = r'\{"[a-z]{2,9}":(?:[0-9]{1,12}|"[a-zé ]*")\}'


COMPILER = PatternCompiler(lambda: TABLE)  # of all tests, which leave its patterns as they are


@dataclass(slots=True)
class Constrained(Decode):
    """A request with a pattern."""

    pattern: str = PATTERN
    text_tokens: int = 0
    changes: Mapping[str, Any] = field(default_factory=dict)  # penalties and a bias

    @property
    def state(self) -> RequestState:
        plain = super(Constrained, self).state
        return msgspec.structs.replace(plain, pattern=self.pattern, text_tokens=self.text_tokens, **self.changes)

    @property
    def text(self) -> str:
        tokens = self.output[: self.text_tokens or len(self.output)].tolist()
        end = tokens.index(END) if END in tokens else len(tokens)
        assert set(tokens[end:]) <= {END}
        return b"".join(TEXTS[token] for token in tokens[:end]).decode()


def engine_with(mode: CacheMode = CacheMode.NONE, patterns: PatternSource | None = None) -> Engine:
    return engine_of(mode, patterns=patterns or COMPILER)


def several(mode: CacheMode, **fields: float) -> list[Decode]:
    """Requests with the pattern, and one without, of other lengths."""
    rng = np.random.default_rng(3)
    given: Mapping[str, float] = {"temperature": 0.0, **fields}
    decodes: list[Decode] = [
        Constrained(t, rng.integers(0, 50, 4 + t).tolist(), 32, BLOCK, 0.4, MASK_ID, given["temperature"], t)
        for t in range(4)
    ]
    decodes.append(Decode(9, [5, 6], 48, BLOCK, 0.4, MASK_ID))
    for decode in decodes:
        decode.cached = mode is not CacheMode.NONE
    return decodes


def failures_of(engine: Engine, decode: Decode) -> list[StepFailure]:
    return run_step(engine, jobs_for([decode])).failures


class Broken(StateSets):
    """Raises an error at some point of a step."""

    def __init__(self, sets: StateSets, name: str) -> None:
        super().__init__(sets.automaton)
        self._broken = name

    def __getattribute__(self, name: str) -> Any:
        if name != "_broken" and name == getattr(self, "_broken", None):
            raise IndexError("list index out of range")
        return super().__getattribute__(name)


class BrokenCompiler(PatternCompiler):
    """Its patterns are broken, but PATTERN is not."""

    def __init__(self, name: str) -> None:
        super().__init__(lambda: TABLE)
        self._name = name

    def compile(self, pattern: str) -> StateSets:
        sets = super().compile(pattern)
        return sets if pattern == PATTERN else Broken(sets, self._name)


# While it is checked, while a batch is packed, and after its forward
@pytest.mark.parametrize("name", ["has_common", "mask", "allows"])
def test_a_form_that_raises_an_error_fails_its_request_alone(name: str) -> None:
    engine = engine_with(patterns=BrokenCompiler(name))
    good, bad = (Constrained(t, [5, 6, 7], 32, BLOCK, 0.4, MASK_ID, pattern=p) for t, p in enumerate((PATTERN, "a*")))
    results = run_step(engine, jobs_for([good, bad]))
    assert [failure.ticket for failure in results.failures] == [1]
    assert "IndexError" in results.failures[0].message
    read_results(results, [good])
    decode_together(engine, [good])
    assert re.fullmatch(PATTERN, good.text)
    assert engine.num_faults == 1


@cache
def traces_of_several(mode: CacheMode) -> dict[int, list[tuple[int, list[int], list[int]]]]:
    decode_together(engine_with(mode), decodes := several(mode))
    return {each.ticket: each.trace for each in decodes}


@pytest.mark.parametrize("mode", [CacheMode.NONE, CacheMode.DUAL])
@pytest.mark.parametrize("reader", range(len(READERS)), ids=[read.__name__ for read in READERS])
def test_predictions_that_cannot_be_read_fail_their_request_alone(
    monkeypatch: pytest.MonkeyPatch, mode: CacheMode, reader: int
) -> None:
    together, expected = several(mode), traces_of_several(mode)
    bad = together.pop(1)

    def read(ran: RanBatch) -> None:
        READERS[reader](ran)
        if bad.ticket in {part.sequence.ticket for part in ran.parts}:
            raise KeyError("no such token")

    monkeypatch.setattr(engine_module, "READERS", (*READERS[:reader], read, *READERS[reader + 1 :]))
    engine = engine_with(mode)
    results = run_step(engine, jobs_for([*together, bad]))
    assert [(failure.ticket, "KeyError" in failure.message) for failure in results.failures] == [(bad.ticket, True)]
    assert engine.num_faults == 1
    read_results(results, together)
    decode_together(engine, together)
    assert [each.trace for each in together] == [expected[each.ticket] for each in together]


def test_a_text_matches_its_pattern_whatever_its_penalties_and_bias() -> None:
    forbidden = {token: 100.0 for token in range(len(TEXTS)) if TEXTS[token] == b""}
    for changes in ({"presence_penalty": 2.0, "repetition_penalty": 10.0}, {"logit_bias": forbidden}):
        decode = Constrained(0, [5, 6, 7], 32, BLOCK, 0.4, MASK_ID, changes=changes)
        decode_together(engine_with(), [decode])
        assert re.fullmatch(PATTERN, decode.text)


@pytest.mark.parametrize("mode", [CacheMode.NONE, CacheMode.PREFIX, CacheMode.DUAL])
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_each_text_matches_its_pattern_alone_and_in_company(mode: CacheMode, temperature: float) -> None:
    together, alone = several(mode, temperature=temperature), several(mode, temperature=temperature)
    decode_together(engine_with(mode), together)
    for decode in alone:
        decode_together(engine_with(mode), [decode])
    for decode in together:
        if isinstance(decode, Constrained):
            assert re.fullmatch(PATTERN, decode.text), decode.text
    assert [decode.trace for decode in together] == [decode.trace for decode in alone]


def test_a_text_that_is_cut_at_its_limit_matches() -> None:
    decode = Constrained(1, [3, 4, 5], 32, BLOCK, 0.4, MASK_ID, pattern="(?:[a-z]{3} ){2,}x", text_tokens=20)
    decode_together(engine_with(), [decode])
    assert re.fullmatch("(?:[a-z]{3} ){2,}x", decode.text)


def test_a_text_continues_on_another_instance() -> None:
    stayed, moved = several(CacheMode.NONE)[0], several(CacheMode.NONE)[0]
    decode_together(engine_with(), [stayed])
    while not moved.done:
        other = engine_with()
        job = StepJob(moved.ticket, len(moved.trace), moved.block, moved.threshold, StepKind.RECOMPUTE)
        other.accept(StepJobs(epoch=1, states=[moved.state]), [job])
        read_results(present(other.iterate()), [moved])
    assert moved.trace == stayed.trace


def test_texts_match_with_little_memory_for_their_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    together, again = several(CacheMode.NONE), several(CacheMode.NONE)
    decode_together(engine_with(), together)
    monkeypatch.setattr(state_sets, "MAX_SETS", 3)
    monkeypatch.setattr(state_sets, "MAX_MASKS", 2)
    decode_together(engine_with(patterns=PatternCompiler(lambda: TABLE)), again)
    assert [decode.trace for decode in again] == [decode.trace for decode in together]


def read_no_tokens() -> TokenTable:
    raise IndexError("an id without a token")


@pytest.mark.parametrize(
    ("source", "pattern", "field", "message"),
    [
        (COMPILER, "c{17}", "pattern", "no text of at most 16 tokens matches the pattern; the shortest has 17"),
        (COMPILER, "(a", "pattern", "is not valid"),
        (None, PATTERN, "pattern", "this instance serves no patterns"),
        (PatternCompiler(read_no_tokens), "a", "pattern", "the pattern cannot be compiled:"),
    ],
)
def test_a_pattern_that_cannot_be_served_fails_its_request(
    source: PatternSource | None, pattern: str, field: str, message: str
) -> None:
    decode = Constrained(1, [3], 16, BLOCK, 0.4, MASK_ID, pattern=pattern)
    [failure] = failures_of(engine_of(patterns=source) if source else engine_of(), decode)
    assert (failure.field, message in failure.message) == (field, True), failure.message


def test_ids_without_a_token_have_no_bytes() -> None:
    tokenizer = Tokenizer(BPE(vocab={"a": 0, "b": 7}, merges=[]))
    tokenizer.decoder = ByteLevel()
    assert token_bytes(tokenizer) == [b"a", *[b""] * 6, b"b"]


class Compiling:
    """Its pattern is compiled once the test sets the result."""

    result = Future[StateSets]()

    def find(self, pattern: str) -> Future[StateSets]:  # noqa: ARG002
        return self.result


def test_others_run_while_a_pattern_is_compiled() -> None:
    patterns = Compiling()
    engine = engine_with(patterns=patterns)
    constrained, plain = several(CacheMode.NONE)[0], several(CacheMode.NONE)[4]
    read_results(run_step(engine, jobs_for([constrained, plain])), [plain])
    assert engine.iterate() is None
    patterns.result.set_result(COMPILER.compile(PATTERN))
    read_results(present(engine.iterate()), [constrained])
    assert len(constrained.trace) == 1


def test_more_patterns_than_are_kept_are_compiled_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pattern_cache, "MAX_PATTERNS", 2)
    decodes: list[Decode] = [
        Constrained(t, [3], 16, BLOCK, 0.4, MASK_ID, pattern=f"[a-c]{{{t + 1}}}") for t in range(4)
    ]
    compiled, ready = list[str](), SimpleQueue[None]()

    class Compiler(PatternCompiler):
        def compile(self, pattern: str) -> StateSets:
            compiled.append(pattern)
            return super().compile(pattern)

    with closing(PatternCache(Compiler(lambda: TABLE))) as patterns:
        patterns.on_ready = lambda: ready.put(None)
        engine = engine_with(patterns=patterns)
        engine.accept(jobs_for(decodes))
        while not all(decode.trace for decode in decodes):
            assert len(compiled) <= len(decodes)
            results = engine.iterate()
            if results is None:
                ready.get(timeout=LIMIT_S)
            else:
                read_results(results, decodes)
        assert len(compiled) == len(decodes)
        assert patterns.find("[a-c]{4}").done()  # now the cache holds this one and the last before it
        patterns.find("[a-c]{1}").result(timeout=LIMIT_S)
        assert compiled[len(decodes) :] == ["[a-c]{1}"]


def test_a_pattern_that_lacked_memory_is_compiled_again() -> None:
    shortages = [OSError("too many open files"), MemoryError()]

    def read_tokens() -> TokenTable:
        if shortages:
            raise shortages.pop()
        return TABLE

    with closing(PatternCache(PatternCompiler(read_tokens))) as patterns:
        for _ in range(2):
            assert isinstance(patterns.find("a").exception(timeout=LIMIT_S), RetryLater)
        assert patterns.find("a").result(timeout=LIMIT_S) is patterns.find("a").result()
    shortages.append(MemoryError())
    engine = engine_with(patterns=PatternCompiler(read_tokens))
    [failure] = failures_of(engine, Constrained(1, [3], 16, BLOCK, 0.4, MASK_ID, pattern="a"))
    assert (failure.field, failure.message) == (None, "the pattern cannot be compiled now: MemoryError()")
