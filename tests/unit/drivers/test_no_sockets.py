"""What is tested here is bytes: a driver that reaches for the network fails its test."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

pytestmark = pytest.mark.disable_socket

MODULES = sorted(Path(__file__).parent.rglob("test_*.py"))


@pytest.mark.filterwarnings("ignore:A test tried to use socket")
def test_the_network_is_off() -> None:
    """A socket of the network cannot be made; a UNIX socket, which asyncio needs, can."""
    pair = socket.socketpair()
    for end in pair:
        end.close()

    with pytest.raises(RuntimeError, match="A test tried to use socket.socket"):
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM)


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.name))
def test_every_module_here_turns_it_off(module: Path) -> None:
    """The mark is not forgotten."""
    assert "\npytestmark = pytest.mark.disable_socket\n" in module.read_text()
