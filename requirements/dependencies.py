"""
What timesyncd depends on: `licences` prints the table of requirements/licences.md, `lowest` prints the lowest version of each dependency
that pyproject.toml allows, as pip's constraints.
"""

from __future__ import annotations

import re
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCK = Path(__file__).with_name("run.lock")

#: By the licence file, where the metadata state nothing.
_BY_FILE = {"pysnmp": "BSD-2-Clause"}

_HEADING = """\
# Licences

What `make run` installs beside timesyncd (requirements/run.lock), with the licence that each package states of itself. `make lock` writes this page.

| package | version | licence |
| --- | --- | --- |
"""


def locked(text: str) -> dict[str, str]:
    """The version of each package in a lock file."""
    return dict(re.findall(r"^([a-z0-9.-]+)==([^ ]+) \\$", text, re.MULTILINE))


def lowest(project: dict[str, object]) -> list[str]:
    """Of every optional dependency; the client has none."""
    extras = project["optional-dependencies"]
    assert isinstance(extras, dict)
    bounds = {requirement for extra in extras.values() for requirement in extra}
    return sorted(re.sub(r"\[.*\]", "", bound).replace(">=", "==") for bound in bounds)


def licence_of(package: str) -> str:
    """As its metadata states it: the expression, else the field, else the classifier."""
    metadata = distribution(package).metadata
    classified = [
        line.rpartition(":: ")[2] for line in metadata.get_all("Classifier", []) if line.startswith("License ::")
    ]
    stated = metadata.get("License-Expression") or metadata.get("License") or " and ".join(classified)
    return stated.splitlines()[0] if stated else _BY_FILE.get(package, "not stated")


def licences() -> str:
    rows = (
        f"| {name} | {version} | {licence_of(name)} |\n" for name, version in sorted(locked(LOCK.read_text()).items())
    )
    return _HEADING + "".join(rows)


if __name__ == "__main__":
    if sys.argv[1:] == ["licences"]:
        print(licences(), end="")
    else:
        print("\n".join(lowest(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"])))
