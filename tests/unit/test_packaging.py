"""What ships is what the tree holds."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_every_package_is_listed() -> None:
    """
    A folder with an __init__.py is in setuptools' list, else it is not in the wheel.
    """
    found = {".".join(init.parent.relative_to(ROOT).parts) for init in (ROOT / "timesyncd").rglob("__init__.py")}
    drivers = {
        ".".join(("timesyncd", *init.parent.relative_to(ROOT).parts))
        for init in (ROOT / "drivers").rglob("__init__.py")
    }
    data = {
        "timesyncd.audit.hook",
        "timesyncd.drivers.timeprovider.profiles",
        "timesyncd.schemas",
        "timesyncd.web.bundle",
        "timesyncd.web.page",
    }

    assert found | drivers | data == set(PYPROJECT["tool"]["setuptools"]["packages"])


def test_every_driver_has_its_entry_point() -> None:
    """
    A module in drivers/ whose name has no leading underscore can be named in the config.
    """
    modules = {path.stem for path in (ROOT / "drivers").glob("*/[!_]*.py")}
    entries = PYPROJECT["project"]["entry-points"]["timesyncd.drivers"]

    assert modules == {target.split(":")[0].rsplit(".")[-1] for target in entries.values()}


LOCK = (ROOT / "requirements/run.lock").read_text()
LOCKED = {name: version for name, version in re.findall(r"^([a-z0-9.-]+)==([^ ]+) \\$", LOCK, re.MULTILINE)}


def test_no_lock_file_names_a_registry() -> None:
    """Who installs chooses the registry; the hashes state what it must give."""
    parts = {path: path.relative_to(ROOT).parts for path in ROOT.rglob("*.lock")}
    locks = [
        path for path, names in parts.items() if not any(name.startswith((".venv", "node_modules")) for name in names)
    ]
    named = [
        line
        for path in locks
        for line in path.read_text().splitlines()
        if re.search(r"://|index-url|find-links|trusted-host|@ ", line)
    ]

    assert ROOT / "requirements/run.lock" in locks
    assert named == []


def test_the_page_s_lock_names_no_registry_and_has_a_hash_for_each_package() -> None:
    """npm installs what package-lock.json pins, from the registry of who installs it; versions are exact."""
    lock = json.loads((ROOT / "page/package-lock.json").read_text())["packages"]
    wanted = json.loads((ROOT / "page/package.json").read_text())
    versions = {**wanted["dependencies"], **wanted["devDependencies"]}

    assert "omit-lockfile-registry-resolved=true" in (ROOT / "page/.npmrc").read_text()
    assert [name for name, entry in lock.items() if "resolved" in entry] == []
    assert [name for name, entry in lock.items() if name and not entry.get("integrity", "").startswith("sha512-")] == []
    assert {name: lock[f"node_modules/{name}"]["version"] for name in versions} == versions


def test_every_locked_package_has_hashes() -> None:
    """`make run` installs with --require-hashes; a package of several platforms has the hashes of all its files."""
    entries = re.split(r"^(?=[a-z0-9])", LOCK, flags=re.MULTILINE)[1:]
    hashes = {entry.split("==")[0]: len(re.findall(r"--hash=sha256:[0-9a-f]{64}", entry)) for entry in entries}

    assert hashes.keys() == LOCKED.keys()
    assert min(hashes.values()) >= 1
    assert min(hashes[name] for name in ("aiohttp", "cryptography", "pydantic-core")) > 20


def test_the_lock_fits_what_pyproject_asks_for() -> None:
    """Each dependency of the extras daemon and demo is locked at its lower bound or above it, and so is what builds."""
    extras = PYPROJECT["project"]["optional-dependencies"]
    bounds = [*extras["daemon"], *extras["demo"], *PYPROJECT["build-system"]["requires"]]
    too_low = [
        bound for bound in bounds
        if numbers(LOCKED[bound.partition(">=")[0].lower()]) < numbers(bound.partition(">=")[2])
    ]  # fmt: skip

    assert too_low == []


def test_every_locked_package_has_its_licence() -> None:
    """The page states the licence of each package at the locked version, and none forbids to ship it beside Apache-2.0."""
    rows = re.findall(
        r"^\| ([a-z0-9.-]+) \| ([^ ]+) \| (.+) \|$", (ROOT / "requirements/licences.md").read_text(), re.MULTILINE
    )

    assert {name: version for name, version, _ in rows if name not in ("package", "---")} == LOCKED
    assert [row for row in rows if "not stated" in row[2] or re.search(r"\bA?GPL", row[2])] == []


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))
