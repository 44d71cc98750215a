"""What ships is what the tree holds."""

from __future__ import annotations

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
