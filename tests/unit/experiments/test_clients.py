"""The outcome of a client's tests, from the reports of pytest and of node:test."""

import pytest
import typer

from experiments.clients import chosen, clients_of, first_line, sorted_by_result

PYTEST = """<testsuites><testsuite><testcase name="test_list_of_prompts"/>
<testcase name="test_tools"><skipped type="pytest.xfail" message="tools are not served"/></testcase>
<testcase name="test_parse"><failure message="[XPASS(strict)] JSON mode is not served"/></testcase>
<testcase name="test_n"><error message="failed on setup&#10;Traceback"/></testcase></testsuite></testsuites>"""
NODE = """<testsuites><testcase name="chat"/><testcase name="stream"><failure message="no text"/></testcase>
<testcase name="responses"><skipped type="todo" message="not served"/><failure message="Not Found"/></testcase>
<testcase name="object"><skipped type="todo" message="not served"/></testcase>
<testcase name="other"><skipped type="skipped" message="test name does not match pattern"/></testcase></testsuites>"""


def test_tests_of_pytest_are_sorted_by_their_result() -> None:
    outcome = sorted_by_result(PYTEST)
    assert outcome.passed == ["list of prompts"]
    assert outcome.expected == ["tools: tools are not served"]
    assert outcome.failed == ["parse: [XPASS(strict)] JSON mode is not served", "n: failed on setup"]


def test_a_test_of_node_that_is_marked_but_passes_is_a_failure() -> None:
    outcome = sorted_by_result(NODE)
    assert outcome.passed == ["chat"]
    assert outcome.expected == ["responses: not served (Not Found)"]
    assert outcome.failed == ["stream: no text", "object: it passes, or was skipped, but is marked: not served"]


def test_a_client_whose_tests_are_not_found_has_failed() -> None:
    assert sorted_by_result("<testsuites><testsuite/></testsuites>").failed == ["no test ran"]


def test_a_reason_fits_in_a_cell() -> None:
    assert first_line("\n  a | b\nTraceback") == r"a \| b"
    assert len(first_line("x" * 1000)) == 200


def test_a_client_has_a_program_or_tests_of_a_program_of_several() -> None:
    own, other = clients_of({"agents": ["httpx"], "others.mjs": {"promptfoo": ["promptfoo"]}})
    assert (own.name, own.program.name, own.pattern) == ("agents", "agents.py", "")
    assert (other.name, other.program.name, other.pattern) == ("promptfoo", "others.mjs", "promptfoo")


def test_an_unknown_client_is_an_error_that_names_the_clients() -> None:
    assert chosen({"one": [], "two": []}, "") == ["one", "two"]
    assert chosen({"one": [], "two": []}, "two") == ["two"]
    with pytest.raises(typer.BadParameter, match="no client three; the clients are one, two"):
        chosen({"one": [], "two": []}, "three")
