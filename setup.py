"""Installs the product in place only: a wheel would put the folders services and shared into the user's environment."""

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildInPlace(build_py):
    """Builds nothing but an editable install."""

    def run(self) -> None:
        """Raises: SystemExit for any other build."""
        if not self.editable_mode:
            raise SystemExit(
                "dilaserve is installed from its source tree, which stays where it is: `make serve` does it, or "
                "pip install --editable '.[embedded]'; for containers `make images`"
            )
        super().run()


setup(cmdclass={"build_py": BuildInPlace})
