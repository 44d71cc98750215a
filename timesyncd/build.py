"""Which timesyncd this is: version, commit and Python."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path

_PACKAGE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Build:
    """`commit`: of the source, 12 hexadecimal digits; None: unknown. `python`: as 3.11.2."""

    version: str
    commit: str | None
    python: str

    def __str__(self) -> str:
        commit = "unknown commit" if self.commit is None else f"commit {self.commit}"
        return f"timesyncd {self.version} ({commit}, Python {self.python})"


@cache
def this_build() -> Build:
    """Read once: the installation's files, else the checkout that this package is in."""
    return Build(version("timesyncd"), _installed_commit() or _checked_out_commit(), platform.python_version())


def _installed_commit() -> str | None:
    """As the build of the wheel wrote it."""
    try:
        return (_PACKAGE / "commit.txt").read_text().strip()[:12] or None
    except OSError:
        return None


def _checked_out_commit(package: Path = _PACKAGE) -> str | None:
    """The commit that is checked out around the package, read from git's files: the daemon starts no git."""
    git = package.parent / ".git"
    try:
        head = (git / "HEAD").read_text().strip()
        name = head.removeprefix("ref: ")
        if name == head:
            return head[:12]
        if (git / name).is_file():
            return (git / name).read_text().strip()[:12]
        packed = (line.split() for line in (git / "packed-refs").read_text().splitlines())
        return next((fields[0][:12] for fields in packed if fields[1:] == [name]), None)
    except OSError:
        return None
