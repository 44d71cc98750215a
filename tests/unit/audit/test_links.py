"""The ranks' connections as facts: whose they are, what they carried, and what is worth a sentence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from timesyncd.audit.links import (
    evidence_lines,
    interfaces_of,
    links_of,
    packing_ns,
    packing_ns_per_byte,
    worst_first,
)
from timesyncd.ipc.network_record import (
    COUNTERS,
    Connection,
    Endpoint,
    NetworkRecord,
    PackingPart,
    PackingTime,
)
from timesyncd.ipc.tcp_info import ESTABLISHED, TcpInfo

US, MS, S = 1_000, 1_000_000, 1_000_000_000

INFO = TcpInfo(
    state=ESTABLISHED,
    rto_ns=200 * MS,
    rtt_ns=150 * US,
    retransmitted=0,
    bytes_acked=1_000_000,
    bytes_received=1_000_000,
    min_rtt_ns=100 * US,
    data_segments=10_000,
    delivery_bytes_per_s=100_000_000,
    busy_ns=10 * S,
    rwnd_limited_ns=0,
    sndbuf_limited_ns=0,
    rto_recovery_ns=None,
)


def network(rank: int, *connections: Connection, seconds: int = 60, **after: int) -> NetworkRecord:
    """Of a rank on a node of its own, 10.0.0.<rank>."""
    before = dict.fromkeys(COUNTERS, 100)
    return NetworkRecord(
        began_ns=0,
        read_ns=seconds * S,
        addresses={f"10.0.0.{rank}": "eth0", "127.0.0.1": "lo"},
        before={"eth0": before},
        after={"eth0": before | after},
        connections=connections,
    )


def connection(rank: int, port: int, peer: int, peer_port: int, info: TcpInfo = INFO) -> Connection:
    return Connection(Endpoint(f"10.0.0.{rank}", port), Endpoint(f"10.0.0.{peer}", peer_port), info)


def pair(info: TcpInfo = INFO, **after: int) -> dict[int, NetworkRecord]:
    """Two ranks with one connection, of which rank 0 has these counters."""
    return {0: network(0, connection(0, 5, 1, 6, info), **after), 1: network(1, connection(1, 6, 0, 5))}


def lines(networks: dict[int, NetworkRecord]) -> list[str]:
    links = links_of(networks)
    return evidence_lines(links, interfaces_of(networks, links, {0: "node-a", 1: "node-b"}))


def test_a_connection_of_the_job_has_a_rank_at_both_ends() -> None:
    """Others of the process, as to a tracker or a store outside of the job, are not the job's."""
    networks = pair()
    networks[0] = replace(networks[0], connections=(*networks[0].connections, connection(0, 7, 9, 443)))
    links = links_of(networks)

    assert [(link.rank, link.peer, link.address, link.interface) for link in links] == [
        (0, 1, "10.0.0.1", "eth0"),
        (1, 0, "10.0.0.0", "eth0"),
    ]


def test_connections_of_a_pair_add_up() -> None:
    """Times of a round trip are those of the connection that carried most; unknown stays unknown."""
    busy = replace(INFO, bytes_acked=9_000_000, rtt_ns=MS, retransmitted=3)
    old = replace(INFO, busy_ns=None, retransmitted=2)
    networks = {
        0: network(0, connection(0, 5, 1, 6, old), connection(0, 7, 1, 8, busy)),
        1: network(1, connection(1, 6, 0, 5), connection(1, 8, 0, 7)),
    }
    link = links_of(networks)[0]

    assert (link.sent_bytes, link.retransmitted, link.segments) == (10_000_000, 5, 20_000)
    assert (link.rtt_ns, link.busy_ns) == (MS, None)
    assert link.retransmit_limit_ns == 5 * 200 * MS


def test_a_kernel_that_counts_recovery_widens_what_loss_can_explain() -> None:
    """Timeouts double: several of one segment take longer than one each, and only the kernel knows by how much."""
    link = links_of(pair(replace(INFO, retransmitted=2, rto_recovery_ns=3 * S)))[0]

    assert link.retransmit_limit_ns == 2 * 200 * MS + 3 * S


def test_ranks_of_one_host_use_no_interface() -> None:
    """The kernel hands over what is sent to an address of its own."""
    local = {
        rank: replace(network(0, one), connections=(one,))
        for rank, one in ((0, connection(0, 5, 0, 6)), (1, connection(0, 6, 0, 5)))
    }
    links = links_of(local)

    assert [link.interface for link in links] == [None, None]
    assert interfaces_of(local, links, {}) == []


def test_hosts_with_the_same_addresses_are_not_matched() -> None:
    """Containers may all have one private address: whose connection it is cannot be known."""
    networks = pair()
    networks[2] = networks[1]

    assert links_of(networks) == []


def test_nothing_is_stated_where_no_connection_is_known() -> None:
    """NCCL over InfiniBand has none, and a hub's window has no records."""
    assert lines({}) == [] == lines({0: network(0)})


def test_retransmissions_are_stated_with_the_round_trip() -> None:
    """The worst link, with its peer's address."""
    worse = replace(INFO, retransmitted=310, rtt_ns=400 * US)

    assert lines(pair(worse)) == [
        "rank 0 retransmitted 3.1 % of its segments to rank 1 at 10.0.0.1; rtt 400 µs against a minimum of 100 µs"
    ]


@pytest.mark.parametrize(
    ("retransmitted", "segments", "lossy"), [(9, 100, False), (10, 10_000, True), (10, 10_001, False)]
)
def test_few_retransmissions_are_usual(retransmitted: int, segments: int, lossy: bool) -> None:
    """At least ten segments, and one of a thousand."""
    link = links_of(pair(replace(INFO, retransmitted=retransmitted, data_segments=segments)))[0]

    assert link.is_lossy == lossy


def test_the_worst_link_is_first() -> None:
    """Of many links a page shows a few: by what was sent again, then by what was sent."""
    networks = pair(replace(INFO, retransmitted=1))
    networks[1] = network(1, connection(1, 6, 0, 5, replace(INFO, retransmitted=2)))

    assert [link.rank for link in worst_first(links_of(networks))] == [1, 0]
    assert [link.rank for link in worst_first(links_of(pair(replace(INFO, bytes_acked=5))))] == [1, 0]


def test_an_old_kernel_s_retransmissions_have_no_share() -> None:
    """Their number is stated; a share of an unknown number of segments is not, and nothing follows from it."""
    old = replace(INFO, retransmitted=500, data_segments=None, bytes_acked=2_000_000)
    link = links_of(pair(old))[0]

    assert (link.retransmitted_share, link.is_lossy) == (None, False)
    assert lines(pair(old))[0].startswith("rank 0 retransmitted 500 segments to rank 1 at 10.0.0.1")


def test_what_holds_a_sender_back_is_stated() -> None:
    """A window that is too small for the path looks like a slow link."""
    held = replace(INFO, rwnd_limited_ns=4 * S, sndbuf_limited_ns=S, bytes_acked=2_000_000)

    (line,) = lines(pair(held))
    assert line == (
        "rank 0 retransmitted nothing to rank 1 at 10.0.0.1; rtt 150 µs against a minimum of 100 µs; held back by the receiver's window in 40 % of the time it sent"
    )


def test_drops_of_an_interface_are_stated_once_a_node() -> None:
    """What was counted before the recording is not the job's; a counter that was reset counts from 0."""
    found = lines(pair(rx_dropped=112, tx_errors=2))

    assert found[1:] == ["eth0 of node-a dropped 12 packets and counted 2 errors"]


def test_an_interface_s_traffic_is_that_of_the_recording() -> None:
    """Of ranks of one node, the one that recorded longest counts."""
    networks = pair(tx_bytes=1_100)
    networks[2] = network(0, connection(0, 15, 1, 16), seconds=90, tx_bytes=5_100)
    networks[1] = network(1, connection(1, 6, 0, 5), connection(1, 16, 0, 15))
    found = interfaces_of(networks, links_of(networks), {0: "node-a", 1: "node-b", 2: "node-a"})

    assert [(one.node, one.sent_bytes, one.elapsed_ns) for one in found] == [
        ("node-a", 5_000, 90 * S),
        ("node-b", 0, 60 * S),
    ]


def test_packing_is_the_mean_of_the_ranks() -> None:
    """An octet's price is that of the hooks alone; averaging packs outside of its marks."""
    networks = {
        0: replace(network(0), packing={PackingPart.HOOKS: PackingTime(4_000, 1_000)}),
        1: replace(
            network(1),
            packing={PackingPart.HOOKS: PackingTime(6_000, 1_000), PackingPart.AVERAGING: PackingTime(2_000, 10)},
        ),
        2: network(2),
    }

    assert packing_ns_per_byte(networks) == [4.0, 6.0]
    assert packing_ns(networks) == 4_000
