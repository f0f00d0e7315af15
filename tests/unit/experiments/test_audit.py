"""The report of `make audit`."""

import json

from experiments.audit import read_audit

Package = dict[str, object]

CLEAN: Package = {"name": "httpx", "version": "0.28.1", "vulns": []}
FLAWED: Package = {"name": "h11", "version": "0.1", "vulns": [{"id": "PYSEC-1", "fix_versions": ["0.2"]}]}
SKIPPED: Package = {"name": "numpy", "skip_reason": "not found"}


def output(*packages: Package) -> str:
    return json.dumps({"dependencies": packages, "fixes": []})


def test_a_vulnerability_is_reported_with_its_fix() -> None:
    assert read_audit(output(CLEAN, FLAWED), "") == (["h11 0.1: PYSEC-1, fixed in 0.2"], 1)


def test_packages_without_vulnerabilities_pass() -> None:
    assert read_audit(output(CLEAN), "") == (["no known vulnerability in 1 packages"], 0)


def test_a_package_that_was_not_checked_does_not_pass() -> None:
    assert read_audit(output(CLEAN, SKIPPED), "") == (["NOT CHECKED: numpy: not found"], 3)


def test_an_unreachable_advisory_service_does_not_pass() -> None:
    lines, status = read_audit("", "Traceback\nConnectionError: no such host\n")
    assert lines == ["NOT CHECKED: no advisory service can be reached: ConnectionError: no such host"]
    assert status == 3
