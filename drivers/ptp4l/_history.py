"""Turns the sequence of one ptp4l's readings into samples, reasons for no sample, or nothing yet. Pure."""

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
from timesyncd.sample import ClockSample, NoSample, NoSampleCause, PhcSample, PortState, format_identity

FOLLOWING = (PortState.SLAVE, PortState.UNCALIBRATED)

_E2E_MESSAGES = (1, 9)  # messageTypes Delay_Req and Delay_Resp
_P2P_MESSAGES = (2, 3)
_SYNC = 0
_P2P_MECHANISMS = (2, 3)
_NO_MECHANISM = 0xFE
#: The common link delay service, another process, measures the delay: this port counts no Pdelay messages.
_COMMON_P2P = 3
_SYNCS_UNTIL_STALE = 3
_REPEATS_UNTIL_UNMEASURED = 2
_MOST_LATE_NS = NS_PER_S
_NO_IDENTITIES = (bytes(8), b"\xff" * 8)


@dataclass(frozen=True, slots=True)
class Ptp4lSnapshot:
    """
    The data sets of one reading. `status` was read first and `status_again` last: if both show the same Sync, all data sets between
    belong to it. `before` was read before the queries, `read_ns` and `real_minus_boot_ns` after the responses, `phc` last.
    `followers` are the ports that followed a parent when all of them were asked last.
    """

    before: Moment
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
    max_frequency_ppb: int | None = None
    phc: PhcSample | None = None
    followers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class _Last:
    """
    The newest known Sync; `not_newer` is the last moment at which ptp4l reported no newer one. So many Syncs before it had
    the same offset and path delay (`repeats`).
    """

    snapshot: Ptp4lSnapshot
    not_newer: Moment
    overdue: bool = False
    repeats: int = 0


class SyncHistory:
    """
    Remembers the last Sync of one source. A Sync is new if its ingress_time differs. The first Sync gives no sample, because its age
    is unknown.
    """

    def __init__(self, source: str) -> None:
        self.clock = ""
        self.granularity_ns = 0
        self.domain: int | None = None
        self.daemon_pid: int | None = None
        self.clock_identity = b""
        self._source = source
        self._last: _Last | None = None
        self._counted: tuple[int, PortStats | None] = (0, None)
        self._observed_sync_ns: int | None = None

    def sync_interval_ns(self) -> int | None:
        """Measured between two snapshots; before that, the port's own configured interval, which may differ from its parent's."""
        if self._observed_sync_ns or self._last is None:
            return self._observed_sync_ns
        return interval_ns(self._last.snapshot.port.log_sync_interval)

    def restart(self, boottime_ns: int) -> NoSample:
        """Discard everything: another ptp4l process responds now."""
        self.reset()
        self._counted = (0, None)
        return NoSample(self._source, boottime_ns, "ptp4l restarted", restarted=True)

    def reset(self) -> None:
        """Discard the last Sync, since it no longer shows the age of the next one."""
        self._last = None
        self._observed_sync_ns = None

    def take(self, snapshot: Ptp4lSnapshot) -> ClockSample | NoSample | None:
        """Add the next snapshot. None: no new Sync yet, the first Sync, or another Sync arrived during the reading."""
        last = self._last
        by_ns = snapshot.real_minus_boot_ns - (last.not_newer if last else snapshot.before).real_minus_boot_ns
        if abs(by_ns) > STEP_TOLERANCE_NS:
            self.reset()
            return replace(self._no_sample(snapshot, f"the clock was stepped by {by_ns / 1e6:+.3f} ms"), stepped=True)
        if snapshot.status.ingress_time_ns == 0:
            self.reset()
            no_sync = self._no_sample(
                snapshot, f"no Sync received yet: the port is in state {snapshot.port.state.name}"
            )
            return replace(no_sync, sync_forgotten=last is not None)
        if last is not None and last.snapshot.status.ingress_time_ns == snapshot.status.ingress_time_ns:
            return self._no_newer(snapshot, last)
        if not _is_of_one_sync(snapshot):
            return None
        return self._new_sync(snapshot, last)

    def _no_newer(self, snapshot: Ptp4lSnapshot, last: _Last) -> NoSample | None:
        age_ns = snapshot.before.boottime_ns - last.snapshot.before.boottime_ns
        expected_ns = max(interval_ns(last.snapshot.port.log_sync_interval), self._observed_sync_ns or 0)
        overdue = age_ns > _SYNCS_UNTIL_STALE * expected_ns
        self._last = replace(last, not_newer=snapshot.before, overdue=overdue)
        if not overdue:
            return None
        reason = f"no Sync for {age_ns / NS_PER_S:.1f} s: the port is in state {snapshot.port.state.name}"
        return self._no_sample(snapshot, reason)

    def _new_sync(self, snapshot: Ptp4lSnapshot, last: _Last | None) -> ClockSample | NoSample | None:
        repeats = last.repeats + 1 if last is not None and _is_repeated(last.snapshot, snapshot) else 0
        self._last = _Last(snapshot, snapshot.before, repeats=repeats)
        before, self._counted = self._counted, (snapshot.port.port, snapshot.stats)
        if before[0] == snapshot.port.port and _went_back(before[1], snapshot.stats):
            self._observed_sync_ns = None
            return replace(self._no_sample(snapshot, "ptp4l restarted: its counters were reset"), restarted=True)
        problem = _problem(snapshot)
        if problem is not None:
            return self._no_sample(snapshot, problem)
        if len(snapshot.followers) > 1:
            ports = " and ".join(map(str, snapshot.followers))
            reason = f"ports {ports} both follow a parent: which of them an offset is of is not reported"
            return replace(self._no_sample(snapshot, reason), change=NoSampleCause.TWO_PORTS_FOLLOW)
        if last is None:
            return None
        if (change := _change(last.snapshot, snapshot)) is not None:
            cause, reason = change
            return replace(self._no_sample(snapshot, reason), change=cause)
        if _may_be_old(last.snapshot, snapshot):
            no_offset = self._no_sample(snapshot, "ptp4l has not measured an offset since its port became UNCALIBRATED")
            return replace(no_offset, delay_unmeasured=repeats >= _REPEATS_UNTIL_UNMEASURED)
        if not last.overdue:
            self._observed_sync_ns = _observed_sync_ns(last.snapshot, snapshot) or self._observed_sync_ns
        return self._sample(snapshot, last.not_newer)

    def _no_sample(self, snapshot: Ptp4lSnapshot, reason: str) -> NoSample:
        """With the frequency and the PHC of this reading, which show how the clock was steered meanwhile."""
        return NoSample(
            self._source,
            snapshot.before.boottime_ns,
            reason,
            port_state=snapshot.port.state,
            frequency_ppb=snapshot.frequency_ppb,
            phc=snapshot.phc,
        )

    def _sample(self, snapshot: Ptp4lSnapshot, not_newer: Moment) -> ClockSample:
        port, parent, properties = snapshot.port, snapshot.parent, snapshot.properties
        sent, received = _delay_counters(snapshot)
        delay_log = port.log_min_pdelay_req_interval if _is_p2p(port) else port.log_min_delay_req_interval
        return ClockSample(
            source=self._source,
            clock=self.clock,
            as_of_ns=min(not_newer.boottime_ns, self._stamped_ns(snapshot)),
            read_ns=snapshot.read_ns,
            real_minus_boot_ns=not_newer.real_minus_boot_ns,
            offset_ns=snapshot.status.offset_ns,
            path_delay_ns=-(-_path_delay(snapshot) >> 16),  # rounded up, since the delay bounds an error
            granularity_ns=self.granularity_ns,
            ingress_time_ns=snapshot.status.ingress_time_ns,
            port_state=port.state,
            grandmaster_identity=self._announced(parent.grandmaster_identity),
            parent_identity=self._announced(parent.parent_identity),
            steps_removed=snapshot.current.steps_removed,
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
            frequency_ppb=snapshot.frequency_ppb,
            domain=self.domain,
            daemon_pid=self.daemon_pid,
            leap61=properties.leap61,
            leap59=properties.leap59,
            max_frequency_ppb=snapshot.max_frequency_ppb,
            phc=snapshot.phc,
        )

    def _stamped_ns(self, snapshot: Ptp4lSnapshot) -> int:
        """
        When the Sync was stamped, by the clock that stamped it and by CLOCK_BOOTTIME. ptp4l shows a Sync once its Follow_Up
        has come, so a reading that shows none may be later than that. A clock that was stepped since tells nothing.
        """
        phc, ingress_ns = snapshot.phc, snapshot.status.ingress_time_ns
        if phc is not None and self.clock != "realtime":
            boottime_ns, age_ns = phc.as_of_ns, phc.phc_ns + phc.width_ns - ingress_ns
        else:
            boottime_ns, age_ns = snapshot.read_ns, snapshot.read_ns + snapshot.real_minus_boot_ns - ingress_ns
        return boottime_ns - age_ns if 0 <= age_ns <= _MOST_LATE_NS else boottime_ns

    def _announced(self, identity: bytes) -> str | None:
        """
        None where no Announce gave this identity: ptp4l then names its own clock, which no port of it can follow, as
        with 802.1AS without Announce (`inhibit_announce`).
        """
        return None if identity in (self.clock_identity, *_NO_IDENTITIES) else format_identity(identity)


def interval_ns(log_seconds: int) -> int:
    """2^n seconds, limited to 2^-10 to 2^10: no profile exceeds that, and 127 means "not reported"."""
    return int(NS_PER_S * 2.0 ** max(-10, min(10, log_seconds)))


def _is_of_one_sync(snapshot: Ptp4lSnapshot) -> bool:
    status = snapshot.status
    return (
        snapshot.status_again.ingress_time_ns == status.ingress_time_ns
        and snapshot.parent.grandmaster_identity == status.grandmaster_identity
    )


def _problem(snapshot: Ptp4lSnapshot) -> str | None:
    """Why a new Sync gives no valid offset; None if it does."""
    if snapshot.port.state not in FOLLOWING:
        return f"the port does not follow a parent: it is in state {snapshot.port.state.name}"
    if snapshot.port.delay_mechanism == _NO_MECHANISM:
        return "the port does not measure the path delay"
    return "the path delay is negative" if _path_delay(snapshot) < 0 else None


def _may_be_old(old: Ptp4lSnapshot, new: Ptp4lSnapshot) -> bool:
    """
    Whether the offset may be of an earlier Sync. ptp4l reports a Sync's ingress_time also where it has no path delay to
    compute an offset with, beside the last offset and delay that it had, or 0 (clock.c: clock_synchronize). Its port is
    UNCALIBRATED then, for as long as no answer to a delay request comes.
    """
    if new.port.state is not PortState.UNCALIBRATED:
        return False
    return old.port.state is not PortState.UNCALIBRATED or _is_repeated(old, new)


def _is_repeated(old: Ptp4lSnapshot, new: Ptp4lSnapshot) -> bool:
    return (old.status.offset_ns, _path_delay(old)) == (new.status.offset_ns, _path_delay(new))


def _is_p2p(port: PortDataSet) -> bool:
    return port.delay_mechanism in _P2P_MECHANISMS


def _path_delay(snapshot: Ptp4lSnapshot) -> int:
    """The mean path delay, in ns x 2^16."""
    return snapshot.port.peer_mean_path_delay if _is_p2p(snapshot.port) else snapshot.current.mean_path_delay


def _delay_counters(snapshot: Ptp4lSnapshot) -> tuple[int | None, int | None]:
    if snapshot.stats is None or snapshot.port.delay_mechanism == _COMMON_P2P:
        return None, None
    request, response = _P2P_MESSAGES if _is_p2p(snapshot.port) else _E2E_MESSAGES
    return snapshot.stats.sent[request], snapshot.stats.received[response]


def _went_back(old: PortStats | None, new: PortStats | None) -> bool:
    if old is None or new is None:
        return False
    return any(map(lt, new.received, old.received)) or any(map(lt, new.sent, old.sent))


def _change(old: Ptp4lSnapshot, new: Ptp4lSnapshot) -> tuple[NoSampleCause, str] | None:
    """
    What ptp4l follows now that it did not follow at the last Sync. A sample names its parent clock but neither port;
    another port, of the parent or of this node, is another path, and its counters are other ones.
    """
    before, after = old.parent, new.parent
    if before.parent_identity != after.parent_identity or before.parent_port != after.parent_port:
        names = [f"{format_identity(p.parent_identity)}-{p.parent_port}" for p in (before, after)]
        same_clock = before.parent_identity == after.parent_identity
        cause = NoSampleCause.PATH_CHANGED if same_clock else NoSampleCause.PARENT_CHANGED
        return cause, f"the PTP parent changed from {names[0]} to {names[1]}"
    if before.grandmaster_identity != after.grandmaster_identity:
        changed = f"the grandmaster changed to {format_identity(after.grandmaster_identity)}"
        return NoSampleCause.GRANDMASTER_CHANGED, changed
    if old.port.port != new.port.port:
        changed = f"ptp4l follows the parent through port {new.port.port} instead of port {old.port.port}"
        return NoSampleCause.PATH_CHANGED, changed
    return None


def _observed_sync_ns(old: Ptp4lSnapshot, new: Ptp4lSnapshot) -> int | None:
    """The mean interval of Syncs; the counter may include other domains' Syncs, so it is never longer than the true interval."""
    if old.stats is None or new.stats is None:
        return None
    syncs = new.stats.received[_SYNC] - old.stats.received[_SYNC]
    elapsed_ns = new.status.ingress_time_ns - old.status.ingress_time_ns
    return elapsed_ns // syncs if syncs > 0 and elapsed_ns > 0 else None
