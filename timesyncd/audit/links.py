"""
What the ranks' TCP connections and interfaces show of the job's network: facts beside the fitted model. Pure.

Both ends of a connection have to be ranks of the job: a process has other connections too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from timesyncd.audit.headline import percent, short_duration
from timesyncd.ipc.network_record import Connection, Endpoint, NetworkRecord, PackingPart

#: A share of retransmitted segments below this is usual; and so few of them show nothing.
RETRANSMITTED_SHARE, MIN_RETRANSMITTED = 0.001, 10

#: A part of the time in which data was under way, above which what limited it is stated.
_LIMITED_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class Link:
    """
    What `rank` sent to `peer` by TCP, over all of their connections. `interface` None: both are on one host.

    The times and the rate are those of the connection that carried most. `retransmit_limit_ns`: what all
    retransmissions can have delayed: each by one timeout, and what the kernel counted as recovery from timeouts.
    """

    rank: int
    peer: int
    address: str
    interface: str | None
    sent_bytes: int | None
    retransmitted: int
    segments: int | None
    rtt_ns: int | None
    min_rtt_ns: int | None
    delivery_bytes_per_s: int | None
    busy_ns: int | None
    rwnd_limited_ns: int | None
    sndbuf_limited_ns: int | None
    retransmit_limit_ns: int

    @property
    def retransmitted_share(self) -> float | None:
        """None: the kernel does not count the segments, or there were none."""
        return self.retransmitted / self.segments if self.segments else None

    @property
    def is_lossy(self) -> bool:
        share = self.retransmitted_share
        return share is not None and share >= RETRANSMITTED_SHARE and self.retransmitted >= MIN_RETRANSMITTED


@dataclass(frozen=True, slots=True)
class CarryingInterface:
    """The counters of an interface that carries the job, of one rank's host, while it was recorded; all traffic counts."""

    node: str
    name: str
    elapsed_ns: int
    sent_bytes: int
    received_bytes: int
    dropped: int
    errors: int


_Key = tuple[Endpoint, Endpoint]


def links_of(networks: Mapping[int, NetworkRecord]) -> list[Link]:
    """By rank and peer, in order."""
    owners: dict[_Key, list[int]] = defaultdict(list)
    for rank, network in networks.items():
        for one in network.connections:
            owners[one.local, one.peer].append(rank)
    between: dict[tuple[int, int], list[Connection]] = defaultdict(list)
    for rank, network in networks.items():
        for one in network.connections:
            far = owners.get((one.peer, one.local), [])
            # Two hosts may have the same private addresses and ports: then it is not known which ranks these are.
            if len(far) == 1 and len(owners[one.local, one.peer]) == 1 and far[0] != rank:
                between[rank, far[0]].append(one)
    return [_link(rank, peer, between[rank, peer], networks[rank]) for rank, peer in sorted(between)]


def _link(rank: int, peer: int, found: Sequence[Connection], network: NetworkRecord) -> Link:
    main = max(found, key=lambda one: one.info.bytes_acked or 0)
    is_local = main.peer.address in network.addresses
    return Link(
        rank=rank,
        peer=peer,
        address=main.peer.address,
        interface=None if is_local else network.addresses.get(main.local.address),
        sent_bytes=_sum(one.info.bytes_acked for one in found),
        retransmitted=sum(one.info.retransmitted for one in found),
        segments=_sum(one.info.data_segments for one in found),
        rtt_ns=main.info.rtt_ns,
        min_rtt_ns=main.info.min_rtt_ns,
        delivery_bytes_per_s=main.info.delivery_bytes_per_s,
        busy_ns=_sum(one.info.busy_ns for one in found),
        rwnd_limited_ns=_sum(one.info.rwnd_limited_ns for one in found),
        sndbuf_limited_ns=_sum(one.info.sndbuf_limited_ns for one in found),
        retransmit_limit_ns=sum(
            one.info.retransmitted * one.info.rto_ns + (one.info.rto_recovery_ns or 0) for one in found
        ),
    )


def _sum(values: Iterable[int | None]) -> int | None:
    """None: one of them is unknown."""
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total


def worst_first(links: Sequence[Link]) -> list[Link]:
    """By the share that was sent again, then by what was sent."""
    return sorted(links, key=lambda link: (-(link.retransmitted_share or 0.0), -(link.sent_bytes or 0)))


def interfaces_of(
    networks: Mapping[int, NetworkRecord], links: Sequence[Link], nodes: Mapping[int, str]
) -> list[CarryingInterface]:
    """Those that carry a link. Of the ranks of one node the one that recorded longest counts."""
    found: dict[tuple[str, str], CarryingInterface] = {}
    for link in links:
        network, name = networks[link.rank], link.interface
        if name is None or name not in network.before or name not in network.after:
            continue
        one = _interface(nodes.get(link.rank, ""), name, network)
        known = found.get((one.node, name))
        if known is None or known.elapsed_ns < one.elapsed_ns:
            found[one.node, name] = one
    return [found[key] for key in sorted(found)]


def _interface(node: str, name: str, network: NetworkRecord) -> CarryingInterface:
    def grown(*counters: str) -> int:
        """A counter that went back was reset: it counts from 0."""
        before, after = network.before[name], network.after[name]
        return sum(
            after.get(each, 0) - (before.get(each, 0) if before.get(each, 0) <= after.get(each, 0) else 0)
            for each in counters
        )

    return CarryingInterface(
        node=node,
        name=name,
        elapsed_ns=network.read_ns - network.began_ns,
        sent_bytes=grown("tx_bytes"),
        received_bytes=grown("rx_bytes"),
        dropped=grown("rx_dropped", "tx_dropped"),
        errors=grown("rx_errors", "tx_errors"),
    )


def packing_ns_per_byte(networks: Mapping[int, NetworkRecord]) -> list[float]:
    """Of each rank whose communication hooks packed anything: the CPU time for an octet."""
    times = [network.packing.get(PackingPart.HOOKS) for _, network in sorted(networks.items())]
    return [time.cpu_ns / time.bytes for time in times if time is not None and time.bytes]


def packing_ns(networks: Mapping[int, NetworkRecord]) -> int:
    """The CPU time of packing in the mean of the ranks, of which there is one at least."""
    total = sum(time.cpu_ns for network in networks.values() for time in network.packing.values())
    return total // len(networks)


def evidence_lines(links: Sequence[Link], interfaces: Sequence[CarryingInterface]) -> list[str]:
    """Facts, the worst link first; no cause follows from them alone."""
    if not links:
        return []
    lossy = sorted((link for link in links if link.is_lossy), key=lambda link: -(link.retransmitted_share or 0))
    main = lossy[0] if lossy else max(links, key=lambda link: link.sent_bytes or 0)
    found = [_link_text(main)]
    found += [
        f"{one.name} of {one.node} dropped {one.dropped:,} packets and counted {one.errors:,} errors"
        for one in interfaces
        if one.dropped or one.errors
    ]
    return found


def _link_text(link: Link) -> str:
    parts = [_retransmitted_text(link)]
    if link.rtt_ns is not None and link.min_rtt_ns:
        parts.append(f"rtt {short_duration(link.rtt_ns)} against a minimum of {short_duration(link.min_rtt_ns)}")
    for held_ns, what in ((link.rwnd_limited_ns, "the receiver's window"), (link.sndbuf_limited_ns, "its send buffer")):
        if link.busy_ns and held_ns is not None and held_ns >= _LIMITED_SHARE * link.busy_ns:
            parts.append(f"held back by {what} in {percent(held_ns / link.busy_ns, 0)} of the time it sent")
    return "; ".join(parts)


def _retransmitted_text(link: Link) -> str:
    to = f"rank {link.peer} at {link.address}"
    share = link.retransmitted_share
    if link.retransmitted and share is not None:
        return f"rank {link.rank} retransmitted {percent(share)} of its segments to {to}"
    if link.retransmitted:
        return f"rank {link.rank} retransmitted {link.retransmitted:,} segments to {to}"
    return f"rank {link.rank} retransmitted nothing to {to}"
