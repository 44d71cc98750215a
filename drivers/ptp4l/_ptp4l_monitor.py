"""The end of ptp4l's slave event monitor: a path of ours that it sends to."""

from __future__ import annotations

import socket
from collections import deque
from contextlib import suppress
from pathlib import Path

from timesyncd.clocks import NS_PER_S
from timesyncd.drivers.ptp4l._event_monitor import Event, Record, RxSync, parse_event
from timesyncd.drivers.ptp4l._ptp4l_lease import NOTHING, Pace, admitting, lease_ms, queue_length
from timesyncd.drivers.ptp4l._socket import Channel
from timesyncd.errors import Malformed, Unreachable

_MOST_KEPT = 1024


class Monitor:
    """
    Keeps the newest records of one ptp4l until they are taken; `lost` counts those that had to go before, `strange`
    what was no record of this ptp4l. ptp4l never waits for us: outside the lease that `renew` gives the kernel tosses
    what it sends.
    """

    def __init__(self, path: Path, server: Path, domain: int, clock_identity: bytes) -> None:
        """Raises Unreachable when the path cannot be had."""
        self.lost = 0
        self.strange = 0
        self._path = path
        self._server = server
        self._sender = (domain, clock_identity)
        self._records: deque[Record] = deque(maxlen=_MOST_KEPT)
        self._queue = queue_length()
        self._lease_ms = 0
        self._from_ns = 0
        self._pace = Pace()
        self._channel = self._bind()

    def renew(self, local_ns: int, sync_interval_ns: int, delay_interval_ns: int) -> None:
        """
        Let in what is stamped from `local_ns` (of the newest Sync) on, for a while. Takes the path again if somebody
        removed it. The Sync interval is taken for the parent's until enough Syncs showed that. Raises Unreachable.
        """
        if not self._channel.is_in_place():
            self._channel.close()
            self._channel = self._bind()
        self._pace.used(local_ns)
        # The port's own Sync interval may be shorter than its parent's, and then no second Sync would come in.
        syncs_ns = self._pace.interval_ns() or max(sync_interval_ns, NS_PER_S)
        self._lease_ms = lease_ms(self._queue, syncs_ns, delay_interval_ns)
        self._admit_from(local_ns)

    def take(self) -> list[Record]:
        """The records since the last call, oldest first."""
        records = list(self._records)
        self._records.clear()
        return records

    def close(self) -> None:
        self._channel.close()

    def _bind(self) -> Channel:
        _clear(self._path)
        channel = Channel(self._path, self._server, self._received)
        try:
            channel.admit(NOTHING)
        except Unreachable:
            channel.close()
            raise
        return channel

    def _received(self, datagram: bytes) -> bool:
        try:
            event = parse_event(datagram)
        except Malformed:
            self.strange += 1
            return True
        self._keep(event)
        return True

    def _keep(self, event: Event) -> None:
        if (event.domain, event.clock_identity) != self._sender:
            self.strange += 1
            return
        self.lost += len(self._records) == _MOST_KEPT
        self._records.append(event.record)
        if isinstance(event.record, RxSync):
            self._pace.heard(event.record)
        if event.record.local_ns - self._from_ns > self._lease_ms * 1_000_000 // 3:
            with suppress(Unreachable):  # then the next `renew` tells
                self._admit_from(event.record.local_ns)

    def _admit_from(self, local_ns: int) -> None:
        self._from_ns = local_ns
        self._channel.admit(admitting(local_ns, self._lease_ms))


def _clear(path: Path) -> None:
    """Remove what a killed predecessor left. Raises Unreachable where somebody listens, and for what is no socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(str(path))
        except FileNotFoundError:
            return
        except ConnectionRefusedError:
            if path.is_socket():
                path.unlink(missing_ok=True)
                return
        except OSError as error:
            raise Unreachable(f"{path}: {error.strerror or error}") from error
    raise Unreachable(
        f"{path}: taken by another process, or no socket: give each source a slave_event_monitor of its own"
    )
