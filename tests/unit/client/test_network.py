"""What a process reads of its own connections and interfaces, from real sockets."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from fake_clocks import replace_time

from timesyncd.client import network
from timesyncd.client.network import (
    FIRST_INTERVAL_NS,
    MAX_WRITTEN,
    NetworkRecorder,
    addresses,
    connections,
    endpoint_of,
    interface_counters,
)
from timesyncd.ipc.network_record import COUNTERS, Connection, Endpoint, parse_network
from timesyncd.ipc.tcp_info import parse_tcp_info


@contextmanager
def connected() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection over loopback, in this process."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as one:
        other, _ = server.accept()
        with other:
            yield one, other


def found(one: socket.socket) -> list[Connection]:
    """The connections that begin at this socket."""
    return [each for each in connections() if each.local == Endpoint(*one.getsockname()[:2])]


def test_both_ends_of_a_connection_are_found_with_what_was_sent() -> None:
    """By their addresses and ports; the octets that the other end acknowledged are counted."""
    with connected() as (one, other):
        one.sendall(b"x" * 10_000)
        while len(other.recv(10_000, socket.MSG_PEEK)) < 10_000:
            pass
        other.sendall(b"y")  # acknowledges all of it
        one.recv(1)
        (mine,), (theirs,) = found(one), found(other)

        assert mine.peer == theirs.local == Endpoint(*other.getsockname()[:2])
        assert mine.info.bytes_acked is not None and mine.info.bytes_acked >= 10_000
        assert theirs.info.bytes_received is not None and theirs.info.bytes_received >= 10_000


def test_what_is_no_established_tcp_connection_is_left_out(tmp_path: Path) -> None:
    """A listening socket, UDP, a UNIX socket, a pipe and a file: nothing is asked of them."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
        (tmp_path / "file").open("w"),
    ):
        datagrams.connect(("127.0.0.1", 9))
        pair, pipe = socket.socketpair(), os.pipe()
        ours = {server.getsockname()[1], datagrams.getsockname()[1]}
        ports = {one.local.port for one in connections()}
        for each in pair:
            each.close()
        for descriptor in pipe:
            os.close(descriptor)

    assert not ours & ports


def test_reading_changes_nothing_of_a_socket() -> None:
    """A default timeout of the script would make the job's sockets non-blocking if they became Python's sockets."""
    with connected() as (one, _):
        one.setblocking(True)
        socket.setdefaulttimeout(5.0)
        try:
            before = os.listdir("/proc/self/fd")
            assert found(one)
            assert os.listdir("/proc/self/fd") == before
        finally:
            socket.setdefaulttimeout(None)

        assert os.get_blocking(one.fileno())
        assert not found(one)[0].info.retransmitted


def test_addresses_have_their_interfaces() -> None:
    """Loopback has one of each family where the kernel has the family."""
    own = addresses()

    assert own["127.0.0.1"] == "lo"
    assert set(own.values()) <= {name for _, name in socket.if_nameindex()}


def test_counters_are_those_of_the_kernel() -> None:
    """All of them, of loopback, which every machine has; an interface that is not there is left out."""
    read = interface_counters(["lo", "no-such-interface"])

    assert set(read) == {"lo"} and set(read["lo"]) == set(COUNTERS)


def test_an_address_of_another_family_is_refused() -> None:
    """A UNIX socket's name, and an IP address that is cut."""
    for data in (b"", bytes([1, 0]) + bytes(14), bytes([2, 0, 0, 80, 127]), bytes([10, 0]) + bytes(20)):
        with pytest.raises(ValueError, match="no IP address"):
            endpoint_of(data)


def test_addresses_of_both_families_are_read() -> None:
    """An IPv4 address that a socket of IPv6 maps is that address: the other rank may know it so."""
    head = bytes([socket.AF_INET6, 0, 0, 80]) + bytes(4)

    assert endpoint_of(bytes([2, 0, 1, 0, 10, 0, 0, 1]) + bytes(8)) == Endpoint("10.0.0.1", 256)
    assert endpoint_of(head + bytes(15) + b"\1" + bytes(4)) == Endpoint("::1", 80)
    assert endpoint_of(head + bytes(10) + b"\xff\xff\x7f\0\0\1" + bytes(4)) == Endpoint("127.0.0.1", 80)


def test_a_recorder_writes_what_is_read_and_keeps_what_is_closed(tmp_path: Path) -> None:
    """A job closes its connections before the process ends: their last counters stay in the record."""
    (tmp_path / "marks").mkdir()
    recorder = NetworkRecorder(tmp_path / "marks" / "rank-0-1-ab.network")
    with connected() as (one, _):
        key = Endpoint(*one.getsockname()[:2])
        recorder.read()
    recorder.read()
    record = parse_network((tmp_path / "marks" / "rank-0-1-ab.network").read_bytes())

    assert key in {each.local for each in record.connections}
    assert record.addresses["127.0.0.1"] == "lo" and "lo" not in record.after
    assert record.read_ns > record.began_ns
    assert [path.name for path in (tmp_path / "marks").iterdir()] == ["rank-0-1-ab.network"]


def test_a_reading_is_due_ever_more_rarely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After one second, then two seconds later, then four."""
    now_ns = 0
    replace_time(monkeypatch, network, monotonic_ns=lambda: now_ns)
    recorder = NetworkRecorder(tmp_path / "rank-0-1-ab.network")
    read: list[int] = []
    monkeypatch.setattr(recorder, "read", lambda: read.append(now_ns // FIRST_INTERVAL_NS))
    for second in range(20):
        now_ns = second * FIRST_INTERVAL_NS
        recorder.read_if_due()

    assert read == [1, 3, 7, 15]


def test_the_connections_that_carried_most_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """gloo connects every rank of a group with every other one, and uses a few of these connections."""
    info = parse_tcp_info(bytes([1]) + bytes(279))
    carried = [replace(info, bytes_acked=port, bytes_received=port % 2 * 1_000) for port in range(200)]
    all_of_them = [Connection(Endpoint("10.0.0.1", n), Endpoint("10.0.0.2", n), one) for n, one in enumerate(carried)]
    monkeypatch.setattr("timesyncd.client.network.connections", lambda: all_of_them)
    path = tmp_path / "rank-0-1-ab.network"
    NetworkRecorder(path).read()

    ports = [one.local.port for one in parse_network(path.read_bytes()).connections]
    assert ports == list(range(199, 199 - 2 * MAX_WRITTEN, -2))


def test_a_rank_without_marks_leaves_no_file(tmp_path: Path) -> None:
    """Nor does a folder that cannot be written raise anything: the marks are what matters."""
    (tmp_path / "file").write_text("")
    for folder in ("file", "missing"):
        NetworkRecorder(tmp_path / folder / "rank-0-1-ab.network").read()

    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_forked_process_writes_nothing(tmp_path: Path) -> None:
    """The connections of the parent are not its own."""
    path = tmp_path / "rank-0-1-ab.network"
    recorder = NetworkRecorder(path)
    child = os.fork()
    if child == 0:
        recorder.read()
        os._exit(int(path.exists()))
    _, status = os.waitpid(child, 0)

    assert status == 0
