"""What is wrong with one grandmaster by its own words: a rule each. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from timesyncd.bound import Reason
from timesyncd.clocks import NS_PER_S
from timesyncd.findings.grandmaster_history import UnitHistory, qualifications, selected_reference
from timesyncd.findings.text import antenna_text, is_locked, state_text, utc_text
from timesyncd.messages.node import OK, GrandmasterState
from timesyncd.sample import Alarm, PtpPort, Sensor

#: A receiver fixes time with four satellites; below 37 dB-Hz a SyncServer S6x0 counts them as weak.
MIN_SATELLITES = 4
GOOD_CN0_DB_HZ = 37

#: A satellite that passes behind a mast is no finding; a cold receiver takes 12.5 minutes to read the almanac.
WEAK_FOR_NS = 180 * NS_PER_S
COLD_START_NS = 900 * NS_PER_S

#: Lists are read once a minute, the state every ten seconds: for so long they may contradict each other.
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
    Something that a finding `id` is raised for, once it has held for `after_ns` without a break. `aspect` tells apart those
    of one id that may come and go by themselves.
    """

    id: str
    text: str
    after_ns: int = 0
    aspect: str = ""


def symptoms(unit: GrandmasterState, history: UnitHistory, now_ns: int) -> list[Symptom]:
    """Of a unit that does not answer, what was known last still stands: silence mends nothing."""
    found = [symptom for rule in _RULES for symptom in rule(unit, history, now_ns)]
    return [*found, *(_of_alarm(alarm, unit) for alarm in unit.alarms or [] if _stands(alarm))]


def _lost(unit: GrandmasterState, history: UnitHistory, now_ns: int) -> Iterator[Symptom]:
    if not unit.reachable and unit.reason_code != OK:
        yield Symptom("grandmaster-lost", unit.reason or "no answer")


def _antenna(unit: GrandmasterState, history: UnitHistory, now_ns: int) -> Iterator[Symptom]:
    text = antenna_text(unit)
    if text is not None:
        yield Symptom("grandmaster-antenna", text)


def _spoofing(unit: GrandmasterState, history: UnitHistory, now_ns: int) -> Iterator[Symptom]:
    if history.held.moved_m is not None:
        yield Symptom("grandmaster-spoofing", f"the held position moved by {history.held.moved_m} m", aspect="position")
    jump = history.suspicion(now_ns)
    if jump is not None:
        yield Symptom("grandmaster-spoofing", jump, aspect="time")


def _jamming(unit: GrandmasterState, history: UnitHistory, now_ns: int) -> Iterator[Symptom]:
    fall = history.signal.fall
    if fall is not None:
        yield Symptom("grandmaster-jamming", f"C/N0 of nearly all satellites fell together by {fall.db} dB or more")


def _few_satellites(unit: GrandmasterState, history: UnitHistory, now_ns: int) -> Iterator[Symptom]:
    satellites = unit.satellites
    if satellites is None or not _follows_gnss(unit, history):
        return
    if satellites and all(satellite.cn0_db_hz is None for satellite in satellites):
        return
    good = sum((each.cn0_db_hz or 0) > GOOD_CN0_DB_HZ and each.healthy is not False for each in satellites)
    if good >= MIN_SATELLITES:
        return
    weak = f"{good} of {len(satellites)} satellites above {GOOD_CN0_DB_HZ} dB-Hz, {MIN_SATELLITES} are needed"
    after_ns = WEAK_FOR_NS if is_locked(unit) and _reference_lost_text(unit, history) is None else 0
    after_ns = COLD_START_NS if unit.clock_state == "warmup" else after_ns
    yield Symptom("grandmaster-few-satellites", weak if satellites else "no satellite is tracked", after_ns)


def _reference_lost(unit: GrandmasterState, history: UnitHistory, now_ns: int) -> Iterator[Symptom]:
    text = _reference_lost_text(unit, history)
    if text is not None:
        yield Symptom("grandmaster-reference-lost", text)


def _reference_lost_text(unit: GrandmasterState, history: UnitHistory) -> str | None:
    if unit.clock_state == "warmup":
        return None  # it has not had one yet
    said, now = qualifications(unit), selected_reference(unit)
    if history.selected is not None and said.get(history.selected) == "disqualified":
        instead = f"; on {now} now" if now not in (None, history.selected) else ""
        return f"reference {history.selected} disqualified{instead}"
    disqualified = [name for name, qualification in said.items() if qualification == "disqualified"]
    if disqualified and now is None and history.selected is None:
        return f"no reference selected; disqualified: {', '.join(disqualified)}"
    return None


def _not_locked(unit: GrandmasterState, history: UnitHistory, now_ns: int) -> Iterator[Symptom]:
    if not is_locked(unit):
        restarted_ns = history.restarted_ns(now_ns)
        after = "" if restarted_ns is None else f", after its restart at {utc_text(restarted_ns, now_ns)}"
        yield Symptom("grandmaster-not-locked", state_text(unit, now_ns) + after)


def _unfounded_lock(unit: GrandmasterState, history: UnitHistory, now_ns: int) -> Iterator[Symptom]:
    claim = "LOCKED" if unit.clock_state == "locked" else "clock class 6" if unit.clock_class == 6 else None
    contradicts_itself = unit.utc is not None and unit.utc.reason_code == Reason.GRANDMASTER_CONTRADICTS_ITSELF.code
    if claim is not None and _has_nothing(unit):
        text = f"{claim} with no usable satellite and no other reference"
        yield Symptom("grandmaster-unfounded-lock", text, WEAK_FOR_NS)
    elif contradicts_itself:
        text = f"{state_text(unit, now_ns)} with clock class {unit.clock_class}"
        yield Symptom("grandmaster-unfounded-lock", text, WEAK_FOR_NS)


def _has_nothing(unit: GrandmasterState) -> bool:
    """Satellites are told and none is usable; references are told, or the time source is, and none but GNSS is there."""
    selected = selected_reference(unit)
    if selected is not None and not _is_gnss(selected) and qualifications(unit).get(selected) != "disqualified":
        return False
    is_told = selected is not None or unit.references is not None or unit.time_source == TIME_SOURCE_GNSS
    no_satellite = unit.satellites is not None and all(each.healthy is False for each in unit.satellites)
    return no_satellite and is_told and not unit.steps_removed


def _clients(unit: GrandmasterState, history: UnitHistory, now_ns: int) -> Iterator[Symptom]:
    for port in unit.ports or []:
        text = _crowd_text(port)
        if text is not None:
            yield Symptom("grandmaster-clients", f"{port.name}: {text}", aspect=port.name)


def _crowd_text(port: PtpPort) -> str | None:
    if port.clients is not None and port.max_clients and port.clients > MAX_CLIENT_SHARE * port.max_clients:
        return f"{port.clients} of {port.max_clients} clients"
    if port.client_load_percent is not None and port.client_load_percent > MAX_LOAD_PERCENT:
        return f"{port.client_load_percent} % of its capacity used"
    return None


def _leap(unit: GrandmasterState, history: UnitHistory, now_ns: int) -> Iterator[Symptom]:
    if unit.leap in ("insert", "delete"):
        now = "" if unit.utc_offset_s is None else f"; the UTC offset is {unit.utc_offset_s} s now"
        yield Symptom("grandmaster-leap", f"a leap second will be {unit.leap.rstrip('e')}ed{now}")


def _sensors(unit: GrandmasterState, history: UnitHistory, now_ns: int) -> Iterator[Symptom]:
    for sensor in unit.sensors or []:
        if sensor.ok is False and sensor.kind in ("fan", "power", "temperature"):
            yield Symptom(f"grandmaster-{sensor.kind}", _sensor_text(sensor), aspect=sensor.name)


def _sensor_text(sensor: Sensor) -> str:
    return f"{sensor.name}: " + ("not ok" if sensor.value is None else f"{sensor.value:g} {sensor.unit or ''}".strip())


def _firmware(unit: GrandmasterState, history: UnitHistory, now_ns: int) -> Iterator[Symptom]:
    version = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", unit.firmware or "")
    told = [unit.model, unit.sys_descr, *unit.profiles]
    if version is None or not any("4100" in text for text in told if text):
        return
    numbers = tuple(int(number or 0) for number in version.groups())
    flaws = [flaw for fixed, flaw in FIXED_FLAWS if numbers < fixed]
    if flaws:
        yield Symptom("firmware-known-flaws", f"firmware {version[0]}: {'; '.join(flaws)}")


_RULES: tuple[Callable[[GrandmasterState, UnitHistory, int], Iterator[Symptom]], ...] = (
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


def _stands(alarm: Alarm) -> bool:
    return alarm.severity.lower() not in _NO_FAULT


def _of_alarm(alarm: Alarm, unit: GrandmasterState) -> Symptom:
    """A unit that is locked has lost no reference that it needs: then the alarm stands for itself."""
    id = next((id for pattern, id in _MEANINGS if pattern.search(alarm.text)), "grandmaster-alarm")
    text = f"{alarm.severity} alarm: {alarm.text or alarm.id}"
    is_odd = unit.clock_state == "locked" and id in _OF_TIME
    return Symptom(
        "grandmaster-alarm" if is_odd else id, text, LISTS_LAG_NS if is_odd else 0, f"{alarm.id}.{alarm.index}"
    )


def _follows_gnss(unit: GrandmasterState, history: UnitHistory) -> bool:
    """Also where it is not told what it follows."""
    followed = history.selected or selected_reference(unit)
    return followed is None or _is_gnss(followed)


def _is_gnss(reference: str) -> bool:
    return any(word in reference.upper() for word in ("GNSS", "GPS"))
