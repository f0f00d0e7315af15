"""Certificates for tests, made by the program openssl."""

import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate for the name `localhost`, which is its own authority, and its key."""

    certificate: Path
    key: Path

    def server_context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.certificate, self.key)
        return context


def make_certificate(directory: Path) -> Certificate:
    """Write a certificate and its key to `directory`, which is created."""
    directory.mkdir()
    made = Certificate(directory / "certificate.pem", directory / "key.pem")
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
    files = ["-addext", "subjectAltName=DNS:localhost", "-out", str(made.certificate), "-keyout", str(made.key)]
    subprocess.run([*command.split(), *files], check=True, capture_output=True)
    return made


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("tls") / "server")
