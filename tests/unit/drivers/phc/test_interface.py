"""From an interface to its PTP hardware clock, on ethtool's answers and a tree like /sys/class/net."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from phc_lab import ts_info

from timesyncd.drivers.kernel._machine import Machine
from timesyncd.drivers.phc._device import parse_phc_index, phc_index
from timesyncd.errors import Malformed, Refused, SourceError, Unreachable

pytestmark = pytest.mark.disable_socket

#: What a kernel 6.18 reported for `lo`: software stamps, no clock (-1).
LOOPBACK = bytes.fromhex("41000000 1a000000 ffffffff") + bytes(32)


def machine(net: Path, reported: dict[str, int | None]) -> Machine:
    """`reported` is what ethtool states of each interface: a clock, -1, or None for an interface that has no such answer."""

    def ask(interface: str) -> bytes:
        if interface not in reported:
            raise OSError(errno.ENODEV, "no such device")
        index = reported[interface]
        if index is None:
            raise OSError(errno.EOPNOTSUPP, "not supported")
        return ts_info(index)

    return Machine(net=net, ethtool_ts_info=ask)


def bond(net: Path, name: str, active: str) -> None:
    (net / name / "bonding").mkdir(parents=True)
    (net / name / "bonding" / "active_slave").write_text(f"{active}\n")


def layer(net: Path, name: str, kind: str, below: str) -> None:
    (net / name).mkdir()
    (net / name / "uevent").write_text(f"DEVTYPE={kind}\nINTERFACE={name}\nIFINDEX=7\n")
    (net / name / f"lower_{below}").symlink_to(f"../{below}")


@pytest.mark.parametrize(
    ("answer", "index"), [(ts_info(0), 0), (ts_info(12), 12), (ts_info(-1), None), (LOOPBACK, None)]
)
def test_ethtool_reports_the_clock(answer: bytes, index: int | None) -> None:
    """phc_index of struct ethtool_ts_info; clock 0 is a clock, -1 is none."""
    assert parse_phc_index(answer) == index


def test_a_short_answer_is_malformed() -> None:
    """Never a guess."""
    with pytest.raises(Malformed, match="43 octets instead of 44"):
        parse_phc_index(ts_info(0)[:-1])


def test_the_kernels_report_of_a_bond_counts(tmp_path: Path) -> None:
    """Newer kernels answer for the bond themselves."""
    bond(tmp_path, "bond0", "eth1")

    assert phc_index("bond0", machine(tmp_path, {"bond0": 5, "eth1": 1})) == 5


@pytest.mark.parametrize("bonds_word", [None, -1])
def test_a_bond_has_its_active_slaves_clock(tmp_path: Path, bonds_word: int | None) -> None:
    """Where the kernel reports no clock of the bond, or does not know the question there."""
    bond(tmp_path, "bond0", "eth1")

    assert phc_index("bond0", machine(tmp_path, {"bond0": bonds_word, "eth0": 0, "eth1": 1})) == 1


def test_a_vlan_has_the_clock_of_the_interface_below(tmp_path: Path) -> None:
    """Through all layers: a VLAN on a bond is the clock of the bond's active slave."""
    bond(tmp_path, "bond0", "eth1")
    layer(tmp_path, "storage", "vlan", "bond0")

    assert phc_index("storage", machine(tmp_path, {"storage": -1, "bond0": -1, "eth1": 4})) == 4


@pytest.mark.parametrize("kind", ["bridge", "vxlan"])
def test_a_bridge_is_not_its_port(tmp_path: Path, kind: str) -> None:
    """What only uses an interface has no clock, though one lies below."""
    layer(tmp_path, "br0", kind, "eth0")

    assert fails("br0", machine(tmp_path, {"br0": -1, "eth0": 0})) == (
        Refused,
        "br0: this interface has no PTP hardware clock",
    )


def test_a_bond_of_equals_is_refused(tmp_path: Path) -> None:
    """802.3ad has no active slave, so none of its clocks is the one."""
    bond(tmp_path, "bond0", "")

    assert fails("bond0", machine(tmp_path, {"bond0": -1})) == (
        Refused,
        "bond0: this interface has no PTP hardware clock",
    )


def test_layers_in_a_ring_end(tmp_path: Path) -> None:
    """Whatever the tree states, the search is over after a few steps."""
    layer(tmp_path, "a", "vlan", "b")
    layer(tmp_path, "b", "vlan", "a")

    assert fails("a", machine(tmp_path, {"a": -1, "b": -1}))[0] is Refused


def test_no_such_interface(tmp_path: Path) -> None:
    """It is unreachable, not without a clock."""
    assert fails("eth7", machine(tmp_path, {})) == (Unreachable, "eth7: no such interface")


def fails(interface: str, on: Machine) -> tuple[type[SourceError], str]:
    with pytest.raises(SourceError) as caught:
        phc_index(interface, on)
    return type(caught.value), str(caught.value)
