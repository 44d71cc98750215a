"""What the virtual machines need of this machine is named in one line."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from vm_cache import NeedNotMet, check_needs, default_cache, require_version


@pytest.mark.parametrize("version", ["8.1.0", "10.0.2 (Debian 1:10.0.2+ds-2)", "11.1.3"])
def test_a_qemu_with_the_card_is_accepted(version: str) -> None:
    """The igb card came with 8.0, and works from 8.1 on."""
    require_version(f"QEMU emulator version {version}\nCopyright")


@pytest.mark.parametrize(
    "text", ["QEMU emulator version 7.2.17 (Debian 1:7.2)", "QEMU emulator version 8.0.5", "", "?"]
)
def test_an_older_qemu_is_named_with_the_remedy(text: str) -> None:
    """The line has the version that is needed and how to install it."""
    with pytest.raises(NeedNotMet, match=r"^QEMU 8\.1 or newer is needed, not [^\n]*bookworm-backports[^\n]*$"):
        require_version(text)


def test_another_user_than_root_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The need for root comes first: without it nothing else matters."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    with pytest.raises(NeedNotMet, match="^the virtual machines need root"):
        check_needs()


def test_a_missing_program_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line is the command that installs it."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "mke2fs" else f"/usr/bin/{name}")

    with pytest.raises(NeedNotMet, match="^mke2fs is missing: apt-get install e2fsprogs$"):
        check_needs()


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it is in the home folder."""
    monkeypatch.setenv("TIMESYNCD_VM_CACHE", "/srv/vm")
    named = default_cache().folder
    monkeypatch.delenv("TIMESYNCD_VM_CACHE")
    monkeypatch.setenv("HOME", "/home/a")

    assert (named, default_cache().folder) == (Path("/srv/vm"), Path("/home/a/.cache/timesyncd-vm"))
