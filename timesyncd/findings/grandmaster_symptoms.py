"""What is wrong with one grandmaster by its own reports: one rule each. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from timesyncd.bound import Reason
from timesyncd.clocks import NS_PER_S
from timesyncd.findings.grandmaster_history import GrandmasterHistory, qualifications, selected_reference
from timesyncd.findings.leap import half_year_end_s
from timesyncd.findings.text import antenna_text, is_locked, state_text, utc_text
from timesyncd.messages.node import OK, GrandmasterState
from timesyncd.model.leap import Leap, when_text
from timesyncd.sample import Alarm, PtpPort, Sensor

#: A time fix needs four satellites; a SyncServer S6x0 counts satellites below 37 dB-Hz as weak.
MIN_SATELLITES = 4
GOOD_CN0_DB_HZ = 37

#: A satellite that passes behind a mast is not a finding; a cold receiver takes 12.5 minutes to read the almanac.
WEAK_FOR_NS = 180 * NS_PER_S
COLD_START_NS = 900 * NS_PER_S

#: Lists are polled once a minute, the state every ten seconds: for so long they may contradict each other.
LISTS_LAG_NS = 90 * NS_PER_S

MAX_CLIENT_SHARE = 0.8
MAX_LOAD_PERCENT = 80

TIME_SOURCE_GNSS = 0x20

#: First fixed firmware of the TimeProvider 4100, and what it fixed.
FIXED_FLAWS = (
    ((2, 4, 7), "CVE-2024-7801, CVE-2024-43685 and CVE-2024-43687 are fixed in 2.4.7"),
    ((2, 5, 0), "CVE-2025-9497 is fixed in 2.5.0"),
)


@dataclass(frozen=True, slots=True)
class Symptom:
    """
    A condition for the finding `id`, which begins once the condition has held for `after_ns` without a break. `aspect`
    separates conditions of one id that begin and end independently.
    """

    id: str
    text: str
    after_ns: int = 0
    aspect: str = ""


def symptoms(grandmaster: GrandmasterState, history: GrandmasterHistory, now_ns: int) -> list[Symptom]:
    """While a grandmaster does not respond, its last known symptoms remain: missing responses clear nothing."""
    found = [symptom for rule in _RULES for symptom in rule(grandmaster, history, now_ns)]
    return [*found, *(_of_alarm(alarm, grandmaster) for alarm in grandmaster.alarms or [] if _is_active(alarm))]


def _lost(grandmaster: GrandmasterState, history: GrandmasterHistory, now_ns: int) -> Iterator[Symptom]:
    if not grandmaster.reachable and grandmaster.reason_code != OK:
        yield Symptom("grandmaster-lost", grandmaster.reason or "no answer")


def _antenna(grandmaster: GrandmasterState, history: GrandmasterHistory, now_ns: int) -> Iterator[Symptom]:
    text = antenna_text(grandmaster)
    if text is not None:
        yield Symptom("grandmaster-antenna", text)


def _spoofing(grandmaster: GrandmasterState, history: GrandmasterHistory, now_ns: int) -> Iterator[Symptom]:
    if history.held.moved_m is not None:
        yield Symptom("grandmaster-spoofing", f"the held position moved by {history.held.moved_m} m", aspect="position")
    jump = history.suspicion(now_ns)
    if jump is not None:
        yield Symptom("grandmaster-spoofing", jump, aspect="time")


def _jamming(grandmaster: GrandmasterState, history: GrandmasterHistory, now_ns: int) -> Iterator[Symptom]:
    drop = history.signal.drop
    if drop is not None:
        yield Symptom("grandmaster-jamming", f"C/N0 of nearly all satellites dropped together by {drop.db} dB or more")


def _few_satellites(grandmaster: GrandmasterState, history: GrandmasterHistory, now_ns: int) -> Iterator[Symptom]:
    satellites = grandmaster.satellites
    if satellites is None or not _follows_gnss(grandmaster, history):
        return
    if satellites and all(satellite.cn0_db_hz is None for satellite in satellites):
        return
    good = sum((each.cn0_db_hz or 0) > GOOD_CN0_DB_HZ and each.healthy is not False for each in satellites)
    if good >= MIN_SATELLITES:
        return
    weak = f"{good} of {len(satellites)} satellites above {GOOD_CN0_DB_HZ} dB-Hz, {MIN_SATELLITES} required"
    after_ns = WEAK_FOR_NS if is_locked(grandmaster) and _reference_lost_text(grandmaster, history) is None else 0
    after_ns = COLD_START_NS if grandmaster.clock_state == "warmup" else after_ns
    yield Symptom("grandmaster-few-satellites", weak if satellites else "no satellite is tracked", after_ns)


def _reference_lost(grandmaster: GrandmasterState, history: GrandmasterHistory, now_ns: int) -> Iterator[Symptom]:
    text = _reference_lost_text(grandmaster, history)
    if text is not None:
        yield Symptom("grandmaster-reference-lost", text)


def _reference_lost_text(grandmaster: GrandmasterState, history: GrandmasterHistory) -> str | None:
    if grandmaster.clock_state == "warmup":
        return None  # it has had none since its start
    reported, now = qualifications(grandmaster), selected_reference(grandmaster)
    if history.selected is not None and reported.get(history.selected) == "disqualified":
        instead = f"; on {now} now" if now not in (None, history.selected) else ""
        return f"reference {history.selected} disqualified{instead}"
    disqualified = [name for name, qualification in reported.items() if qualification == "disqualified"]
    if disqualified and now is None and history.selected is None:
        return f"no reference selected; disqualified: {', '.join(disqualified)}"
    return None


def _not_locked(grandmaster: GrandmasterState, history: GrandmasterHistory, now_ns: int) -> Iterator[Symptom]:
    if not is_locked(grandmaster):
        restarted_ns = history.restarted_ns(now_ns)
        after = "" if restarted_ns is None else f", after its restart at {utc_text(restarted_ns, now_ns)}"
        yield Symptom("grandmaster-not-locked", state_text(grandmaster, now_ns) + after)


def _unfounded_lock(grandmaster: GrandmasterState, history: GrandmasterHistory, now_ns: int) -> Iterator[Symptom]:
    claim = (
        "LOCKED" if grandmaster.clock_state == "locked" else "clock class 6" if grandmaster.clock_class == 6 else None
    )
    contradicts_itself = (
        grandmaster.utc is not None and grandmaster.utc.reason_code == Reason.GRANDMASTER_CONTRADICTS_ITSELF.code
    )
    if claim is not None and _has_nothing(grandmaster):
        text = f"{claim} with no usable satellite and no other reference"
        yield Symptom("grandmaster-unfounded-lock", text, WEAK_FOR_NS)
    elif contradicts_itself:
        text = f"{state_text(grandmaster, now_ns)} with clock class {grandmaster.clock_class}"
        yield Symptom("grandmaster-unfounded-lock", text, WEAK_FOR_NS)


def _has_nothing(grandmaster: GrandmasterState) -> bool:
    """
    It reports satellites and none is usable; and it reports references, or a time source, and none other than GNSS.
    """
    selected = selected_reference(grandmaster)
    if selected is not None and not _is_gnss(selected) and qualifications(grandmaster).get(selected) != "disqualified":
        return False
    is_told = selected is not None or grandmaster.references is not None or grandmaster.time_source == TIME_SOURCE_GNSS
    no_satellite = grandmaster.satellites is not None and all(each.healthy is False for each in grandmaster.satellites)
    return no_satellite and is_told and not grandmaster.steps_removed


def _clients(grandmaster: GrandmasterState, history: GrandmasterHistory, now_ns: int) -> Iterator[Symptom]:
    for port in grandmaster.ports or []:
        text = _crowd_text(port)
        if text is not None:
            yield Symptom("grandmaster-clients", f"{port.name}: {text}", aspect=port.name)


def _crowd_text(port: PtpPort) -> str | None:
    if port.clients is not None and port.max_clients and port.clients > MAX_CLIENT_SHARE * port.max_clients:
        return f"{port.clients} of {port.max_clients} clients"
    if port.client_load_percent is not None and port.client_load_percent > MAX_LOAD_PERCENT:
        return f"{port.client_load_percent} % of its capacity used"
    return None


def _leap(grandmaster: GrandmasterState, history: GrandmasterHistory, now_ns: int) -> Iterator[Symptom]:
    if grandmaster.leap in ("insert", "delete"):
        now = "" if grandmaster.utc_offset_s is None else f"; the UTC offset is {grandmaster.utc_offset_s} s now"
        when = when_text(Leap(grandmaster.leap), half_year_end_s(now_ns))
        yield Symptom("grandmaster-leap", f"{when}, if at the usual time{now}")
    elif grandmaster.leap == "both":
        yield Symptom("leap-contradiction", "it reports that a leap second is inserted and deleted at once")


def _sensors(grandmaster: GrandmasterState, history: GrandmasterHistory, now_ns: int) -> Iterator[Symptom]:
    for sensor in grandmaster.sensors or []:
        if sensor.ok is False and sensor.kind in ("fan", "power", "temperature"):
            yield Symptom(f"grandmaster-{sensor.kind}", _sensor_text(sensor), aspect=sensor.name)


def _sensor_text(sensor: Sensor) -> str:
    return f"{sensor.name}: " + ("not ok" if sensor.value is None else f"{sensor.value:g} {sensor.unit or ''}".strip())


def _firmware(grandmaster: GrandmasterState, history: GrandmasterHistory, now_ns: int) -> Iterator[Symptom]:
    version = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", grandmaster.firmware or "")
    texts = [grandmaster.model, grandmaster.sys_descr, *grandmaster.profiles]
    if version is None or not any("4100" in text for text in texts if text):
        return
    numbers = tuple(int(number or 0) for number in version.groups())
    flaws = [flaw for fixed, flaw in FIXED_FLAWS if numbers < fixed]
    if flaws:
        yield Symptom("firmware-known-flaws", f"firmware {version[0]}: {'; '.join(flaws)}")


_RULES: tuple[Callable[[GrandmasterState, GrandmasterHistory, int], Iterator[Symptom]], ...] = (
    _lost, _antenna, _spoofing, _jamming, _few_satellites, _reference_lost, _not_locked, _unfounded_lock,
    _clients, _leap, _sensors, _firmware,
)  # fmt: skip

#: What an alarm's text means, the first that matches. Texts, since the families number their alarms differently.
_MEANINGS = tuple(
    (re.compile(pattern, re.IGNORECASE), id)
    for pattern, id in (
        (r"antenna", "grandmaster-antenna"),
        (r"spoof", "grandmaster-spoofing"),
        (r"jam|interference", "grandmaster-jamming"),
        (r"signal low|not tracking|satellite", "grandmaster-few-satellites"),
        (r"client|service load", "grandmaster-clients"),
        (r"leap", "grandmaster-leap"),
        (r"\bfans?\b", "grandmaster-fan"),
        (r"power", "grandmaster-power"),
        (r"temperature", "grandmaster-temperature"),
        (r"disqualif|\b(gnss|gps)\b.*(\blos\b|loss of signal)", "grandmaster-reference-lost"),
        (r"holdover|bridging|free.?run|warm.?up", "grandmaster-not-locked"),
    )
)
_OF_TIME = ("grandmaster-reference-lost", "grandmaster-not-locked")
_NO_FAULT = ("event", "clear", "cleared", "info", "normal")


def _is_active(alarm: Alarm) -> bool:
    return alarm.severity.lower() not in _NO_FAULT


def _of_alarm(alarm: Alarm, grandmaster: GrandmasterState) -> Symptom:
    """A locked grandmaster has lost no reference that it needs: then the alarm is a finding of its own."""
    id = next((id for pattern, id in _MEANINGS if pattern.search(alarm.text)), "grandmaster-alarm")
    text = f"{alarm.severity} alarm: {alarm.text or alarm.id}"
    is_odd = grandmaster.clock_state == "locked" and id in _OF_TIME
    return Symptom(
        "grandmaster-alarm" if is_odd else id, text, LISTS_LAG_NS if is_odd else 0, f"{alarm.id}.{alarm.index}"
    )


def _follows_gnss(grandmaster: GrandmasterState, history: GrandmasterHistory) -> bool:
    """Also where it does not report what it follows."""
    followed = history.selected or selected_reference(grandmaster)
    return followed is None or _is_gnss(followed)


def _is_gnss(reference: str) -> bool:
    return any(word in reference.upper() for word in ("GNSS", "GPS"))
