"""What a sequence of readings of one ptp4l makes of each: a sample, a reason for none, or nothing yet. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import lt

from timesyncd.clocks import NS_PER_S, STEP_TOLERANCE_NS, Moment
from timesyncd.drivers.ptp4l._management import (
    CurrentDataSet,
    ParentDataSet,
    PortDataSet,
    PortStats,
    TimeProperties,
    TimeStatus,
)
from timesyncd.sample import ClockSample, NoSample, PortState, format_identity

FOLLOWING = (PortState.SLAVE, PortState.UNCALIBRATED)

_E2E_MESSAGES = (1, 9)  # messageTypes Delay_Req and Delay_Resp
_P2P_MESSAGES = (2, 3)
_SYNC = 0
_P2P_MECHANISMS = (2, 3)
_NO_MECHANISM = 0xFE
_SYNCS_UNTIL_STALE = 3


@dataclass(frozen=True, slots=True)
class Ptp4lSnapshot:
    """
    What was read in one go. `status` was read first and `status_again` last: when both show one Sync, all that lies
    between belongs to it. `asked` is before the questions, `read_ns` and `real_minus_boot_ns` are of after the answers.
    """

    asked: Moment
    status: TimeStatus
    port: PortDataSet
    parent: ParentDataSet
    current: CurrentDataSet
    properties: TimeProperties
    stats: PortStats | None
    status_again: TimeStatus
    read_ns: int
    real_minus_boot_ns: int
    frequency_ppb: int | None


@dataclass(frozen=True, slots=True)
class _Last:
    """The newest Sync that we know; `not_yet` is the last moment at which no newer one had shown itself."""

    picture: Ptp4lSnapshot
    not_yet: Moment
    overdue: bool = False


class SyncHistory:
    """
    Remembers the last Sync of one source. A Sync is new when its ingress_time is another one; the first only primes,
    because since when it had been there is not known.
    """

    def __init__(self, source: str) -> None:
        self.clock = ""
        self.granularity_ns = 0
        self.domain: int | None = None
        self._source = source
        self._last: _Last | None = None
        self._stats: PortStats | None = None
        self._observed_sync_ns: int | None = None

    def sync_interval_ns(self) -> int | None:
        """From the Syncs that came between two pictures; before that the port's own configured one, which may differ."""
        if self._observed_sync_ns or self._last is None:
            return self._observed_sync_ns
        return interval_ns(self._last.picture.port.log_sync_interval)

    def restart(self, boottime_ns: int) -> NoSample:
        """Another ptp4l answers than before: learn everything anew."""
        self.forget()
        self._stats = None
        return NoSample(self._source, boottime_ns, "ptp4l restarted", restarted=True)

    def forget(self) -> None:
        """What was read so far says nothing of how old the next Sync is."""
        self._last = None
        self._observed_sync_ns = None

    def take(self, picture: Ptp4lSnapshot) -> ClockSample | NoSample | None:
        """The next picture. None: no new Sync yet, or the first one, or one more came in while the picture was taken."""
        last = self._last
        by_ns = picture.real_minus_boot_ns - (last.not_yet if last else picture.asked).real_minus_boot_ns
        if abs(by_ns) > STEP_TOLERANCE_NS:
            self.forget()
            return replace(self._nothing(picture, f"clock stepped by {by_ns / 1e6:+.3f} ms"), stepped=True)
        if picture.status.ingress_time_ns == 0:
            self.forget()
            return self._nothing(picture, f"no Sync: the port is {picture.port.state.name}")
        if last is not None and last.picture.status.ingress_time_ns == picture.status.ingress_time_ns:
            return self._no_newer(picture, last)
        if not _is_of_one_sync(picture):
            return None
        return self._new_sync(picture, last)

    def _no_newer(self, picture: Ptp4lSnapshot, last: _Last) -> NoSample | None:
        age_ns = picture.asked.boottime_ns - last.picture.asked.boottime_ns
        expected_ns = max(interval_ns(last.picture.port.log_sync_interval), self._observed_sync_ns or 0)
        overdue = age_ns > _SYNCS_UNTIL_STALE * expected_ns
        self._last = replace(last, not_yet=picture.asked, overdue=overdue)
        if not overdue:
            return None
        reason = f"no Sync for {age_ns / NS_PER_S:.1f} s: the port is {picture.port.state.name}"
        return replace(self._nothing(picture, reason), frequency_ppb=picture.frequency_ppb)

    def _new_sync(self, picture: Ptp4lSnapshot, last: _Last | None) -> ClockSample | NoSample | None:
        self._last = _Last(picture, picture.asked)
        stats, self._stats = self._stats, picture.stats
        if _went_back(stats, picture.stats):
            self._observed_sync_ns = None
            return replace(self._nothing(picture, "ptp4l restarted: its counters began anew"), restarted=True)
        problem = _problem(picture)
        if problem is not None:
            return self._nothing(picture, problem)
        if last is None:
            return None
        if (moved := _parent_moved(last.picture.parent, picture.parent)) is not None:
            # The samples tell another parent clock, but not another port of it, which is another path.
            same_clock = last.picture.parent.parent_identity == picture.parent.parent_identity
            return replace(self._nothing(picture, moved), restarted=same_clock)
        if not last.overdue:
            self._observed_sync_ns = _observed_sync_ns(last.picture, picture) or self._observed_sync_ns
        return self._sample(picture, last.not_yet)

    def _nothing(self, picture: Ptp4lSnapshot, reason: str) -> NoSample:
        return NoSample(self._source, picture.asked.boottime_ns, reason, port_state=picture.port.state)

    def _sample(self, picture: Ptp4lSnapshot, not_yet: Moment) -> ClockSample:
        port, parent, properties = picture.port, picture.parent, picture.properties
        sent, received = _delay_counters(picture)
        delay_log = port.log_min_pdelay_req_interval if _is_p2p(port) else port.log_min_delay_req_interval
        return ClockSample(
            source=self._source,
            clock=self.clock,
            as_of_ns=not_yet.boottime_ns,
            read_ns=picture.read_ns,
            real_minus_boot_ns=not_yet.real_minus_boot_ns,
            offset_ns=picture.status.offset_ns,
            path_delay_ns=-(-_path_delay(picture) >> 16),  # rounded up: the delay bounds an error
            granularity_ns=self.granularity_ns,
            ingress_time_ns=picture.status.ingress_time_ns,
            port_state=port.state,
            grandmaster_identity=format_identity(parent.grandmaster_identity),
            parent_identity=format_identity(parent.parent_identity),
            steps_removed=picture.current.steps_removed,
            clock_class=parent.grandmaster_class,
            clock_accuracy=parent.grandmaster_accuracy,
            ptp_timescale=properties.ptp_timescale,
            time_traceable=properties.time_traceable,
            current_utc_offset_s=properties.current_utc_offset_s if properties.utc_offset_valid else None,
            time_source=properties.time_source,
            sync_interval_ns=self._observed_sync_ns or interval_ns(port.log_sync_interval),
            delay_interval_ns=interval_ns(delay_log),
            delay_requests_sent=sent,
            delay_responses_received=received,
            frequency_ppb=picture.frequency_ppb,
            domain=self.domain,
        )


def interval_ns(log_seconds: int) -> int:
    """2^n seconds. No profile goes beyond 2^-10 to 2^10, and 127 stands for "not told": the nearer end is taken."""
    return int(NS_PER_S * 2.0 ** max(-10, min(10, log_seconds)))


def _is_of_one_sync(picture: Ptp4lSnapshot) -> bool:
    status = picture.status
    return (
        picture.status_again.ingress_time_ns == status.ingress_time_ns
        and picture.parent.grandmaster_identity == status.grandmaster_identity
    )


def _problem(picture: Ptp4lSnapshot) -> str | None:
    """Why a new Sync gives no valid offset."""
    if picture.port.state not in FOLLOWING:
        return f"the port is {picture.port.state.name}"
    if picture.port.delay_mechanism == _NO_MECHANISM:
        return "the port measures no path delay"
    return "the path delay is negative" if _path_delay(picture) < 0 else None


def _is_p2p(port: PortDataSet) -> bool:
    return port.delay_mechanism in _P2P_MECHANISMS


def _path_delay(picture: Ptp4lSnapshot) -> int:
    """ns x 2^16."""
    return picture.port.peer_mean_path_delay if _is_p2p(picture.port) else picture.current.mean_path_delay


def _delay_counters(picture: Ptp4lSnapshot) -> tuple[int | None, int | None]:
    if picture.stats is None:
        return None, None
    request, response = _P2P_MESSAGES if _is_p2p(picture.port) else _E2E_MESSAGES
    return picture.stats.sent[request], picture.stats.received[response]


def _went_back(old: PortStats | None, new: PortStats | None) -> bool:
    if old is None or new is None:
        return False
    return any(map(lt, new.received, old.received)) or any(map(lt, new.sent, old.sent))


def _parent_moved(old: ParentDataSet, new: ParentDataSet) -> str | None:
    if old.parent_identity != new.parent_identity or old.parent_port != new.parent_port:
        before, after = (f"{format_identity(p.parent_identity)}-{p.parent_port}" for p in (old, new))
        return f"the PTP parent changed from {before} to {after}"
    if old.grandmaster_identity != new.grandmaster_identity:
        return f"the grandmaster changed to {format_identity(new.grandmaster_identity)}"
    return None


def _observed_sync_ns(old: Ptp4lSnapshot, new: Ptp4lSnapshot) -> int | None:
    """Other domains' Syncs may be counted too: never longer than the truth."""
    if old.stats is None or new.stats is None:
        return None
    syncs = new.stats.received[_SYNC] - old.stats.received[_SYNC]
    elapsed_ns = new.status.ingress_time_ns - old.status.ingress_time_ns
    return elapsed_ns // syncs if syncs > 0 and elapsed_ns > 0 else None
