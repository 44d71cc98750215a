"""What grandmasters report by themselves: traps by the profiles' data, lines of syslog, what came twice and what got lost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from timesyncd.daemon.node_state import ActiveAlarms
from timesyncd.drivers.timeprovider._notifications import REMEMBERED, NotificationDecoder, SequenceTracker
from timesyncd.drivers.timeprovider._profiles import DEFAULT, load, load_all
from timesyncd.sample import AlarmEvent, Trap
from timesyncd.snmp.values import Opaque, Raw, format_oid, parse_oid

pytestmark = pytest.mark.disable_socket

S650 = "1.3.6.1.4.1.9070.1.2.5.7.4.1"
TP5000E = "1.3.6.1.4.1.9070.1.2.5.7.1.11"
PROFILES = load_all(DEFAULT)


def trap(oid: str, variables: dict[str, Raw], uptime_ticks: int | None = 100) -> Trap:
    return Trap(
        "192.0.2.1", 7, parse_oid(oid), uptime_ticks, tuple((parse_oid(key), raw) for key, raw in variables.items())
    )


def s650(alarm_id: int = 97, sequence: int = 1, *, tail: str = ".0", **columns: Raw) -> Trap:
    numbers = {"id": 1, "action": 10, "index": 2, "severity": 3, "at": 5, "text": 6, "sequence": 8}
    values: dict[str, Raw] = {
        "id": alarm_id, "action": 1, "index": 2, "severity": 3, "at": b"2026-01-02 03:04:05", "text": b"Antenna open",
        "sequence": sequence,
    }  # fmt: skip
    return trap(
        f"{S650}.2.{alarm_id}", {f"{S650}.1.{numbers[key]}{tail}": raw for key, raw in (values | columns).items()}
    )


def tp5000e(kind: int = 2, sequence: int = 1, **columns: Raw) -> Trap:
    numbers = {"module": 1, "id": 2, "index": 3, "severity": 4, "action": 5, "at": 6, "text": 7, "sequence": 9}
    values: dict[str, Raw] = {
        "module": 1, "id": 12, "index": 0, "severity": 4, "action": 0, "at": b"2026-01-02,03:04:05", "text": b"Short",
        "sequence": sequence,
    }  # fmt: skip
    return trap(f"{TP5000E}.{kind}", {f"{TP5000E}.1.{numbers[key]}.0": raw for key, raw in (values | columns).items()})


def reported(sent: Trap) -> AlarmEvent:
    event = NotificationDecoder("gm-a", PROFILES).event(sent)
    assert event is not None
    return event


OPEN = AlarmEvent("gm-a", 7, "raise", 97, 2, "major", "Antenna open", 1, 0, "2026-01-02 03:04:05")


@pytest.mark.parametrize("tail", [".0", ""])
def test_an_alarm_whose_id_is_in_the_notification(tail: str) -> None:
    """The S650's style: one notification an alarm; its variables come with or without a trailing 0."""
    assert reported(s650(tail=tail)) == OPEN


def test_the_order_of_the_variables_does_not_matter() -> None:
    """A variable is known by its OID."""
    sent = s650()

    assert reported(replace(sent, variables=sent.variables[::-1])) == OPEN


def test_an_alarm_whose_id_is_a_variable() -> None:
    """The TP5000E's style: one notification for all alarms."""
    assert reported(tp5000e()) == AlarmEvent("gm-a", 7, "raise", 12, 0, "minor", "Short", 1, 0, "2026-01-02,03:04:05")


@pytest.mark.parametrize(
    ("sent", "action"),
    [
        (s650(action=0), "clear"), (s650(severity=0), "clear"), (s650(action=2), "event"), (s650(action=9), "unknown"),
        (s650(severity=5), "event"), (s650(severity=5, action=9), "event"), (s650(severity=5, action=0), "clear"),
        (s650(4), "event"), (s650(6), "raise"),
        (tp5000e(severity=0), "clear"), (tp5000e(action=1), "event"), (tp5000e(severity=5), "event"),
        (tp5000e(id=27), "event"), (tp5000e(3), "event"), (tp5000e(4), "event"), (tp5000e(5), "event"),
    ],
)  # fmt: skip
def test_what_happened(sent: Trap, action: str) -> None:
    """Severity 0 or action 0 clears; transient alarms and events are not active; normal track (4, 27) is no fault."""
    assert reported(sent).action == action


def test_an_event_that_an_s650_sets_is_an_event() -> None:
    """As an S650 sent it (public notes): id 163, action set(1), severity event(5); S650ALARM MIB, s650NotifySeverity."""
    sent = s650(163, 737, index=0, severity=5, at=b"2019-07-18 00:02:14", text=b"NTP leap indicator changed to 3")
    alarms = ActiveAlarms()
    alarms.update(reported(sent))

    assert reported(sent).action == "event"
    assert events(sent, sent)[1] is None
    assert not alarms.active


def test_a_severity_without_a_name_is_reported_by_its_number() -> None:
    """There is no severity 1."""
    assert reported(s650(severity=1)).severity == "unknown(1)"


def test_an_alarm_without_text_has_its_name_and_module() -> None:
    """What the family calls that id."""
    assert (reported(s650(text=b"")).text, reported(tp5000e(text=b"")).text) == (
        "GNSS antenna open",
        "GNSS antenna short (module 1)",
    )


@pytest.mark.parametrize("oid", [f"{TP5000E}.0.2", f"{TP5000E}.2"])
def test_a_converted_notification_is_known_too(oid: str) -> None:
    """A conversion from SNMPv1 puts a 0 before the last arc."""
    assert reported(replace(tp5000e(), oid=parse_oid(oid))).id == 12


@pytest.mark.parametrize(
    ("oid", "variables", "text", "index"),
    [
        ("1.3.6.1.6.3.1.1.5.1", {}, "cold start", 0),
        ("1.3.6.1.6.3.1.1.5.3", {"1.3.6.1.2.1.2.2.1.1.4": 4}, "link down", 4),
    ],
)
def test_the_notifications_that_every_agent_sends(oid: str, variables: dict[str, Raw], text: str, index: int) -> None:
    """A restart and a link are events; the link's interface is the event's index."""
    assert reported(trap(oid, variables)) == AlarmEvent("gm-a", 7, "event", None, index, "event", text)


def test_an_unknown_notification_is_kept_as_text() -> None:
    """Nothing is made up: its OID and its values are the text, bounded and printable."""
    event = reported(
        trap("1.3.6.1.4.1.9070.1.99", {"1.3.6.1.4.1.1": 5, "1.3.6.1.4.1.2": b"\x1b[31m", "1.3.6.1.4.1.3": b"x" * 999})
    )

    assert (event.action, event.id, event.severity) == ("unknown", None, "unknown")
    assert event.text.startswith("1.3.6.1.4.1.9070.1.99: 1.3.6.1.4.1.1 = 5, 1.3.6.1.4.1.2 = [31m, 1.3.6.1.4.1.3 = xxx")
    assert (len(event.text) <= 255, event.text.isprintable()) == (True, True)


def test_an_odd_text_makes_no_text() -> None:
    """Octets that break SNMP's rules are shown as such, whatever they would spell."""
    event = reported(trap(f"{S650}.2.97", {f"{S650}.1.6.0": Opaque(bytes.fromhex("47024869"))}))

    assert (event.action, event.text) == ("unknown", f"{S650}.2.97: {S650}.1.6.0 = 0x47024869")


@pytest.mark.parametrize(
    "sent", [s650(severity=b"major"), s650(text=5), s650(at=5), s650(index=2**63), tp5000e(id=b"12")]
)
def test_a_variable_of_the_wrong_type_makes_it_unknown(sent: Trap) -> None:
    """What is not as its profile states is not interpreted, and not lost either."""
    event = reported(sent)

    assert (event.action, event.id) == ("unknown", None)
    assert event.text.startswith(f"{format_oid(sent.oid)}: 1.3.6.1.4.1.9070")


def events(*sent: Trap) -> list[AlarmEvent | None]:
    notifications = NotificationDecoder("gm-a", PROFILES)
    return [notifications.event(one) for one in sent]


def lost(*sent: Trap) -> list[int | None]:
    """None: a repetition."""
    return [None if event is None else event.lost for event in events(*sent)]


def test_a_repetition_is_no_event() -> None:
    """An inform that is sent again and a datagram that comes twice count once."""
    assert lost(s650(), s650(), tp5000e(), tp5000e()) == [0, None, 0, None]


def test_missing_numbers_are_lost_notifications() -> None:
    """Each notification's OID counts for itself."""
    assert lost(s650(97, 1), s650(97, 5), s650(96, 9), s650(96, 10), tp5000e(sequence=3)) == [0, 3, 0, 0, 0]


def test_one_that_was_overtaken_is_not_lost_twice() -> None:
    """A late notification fills the gap that it left."""
    assert lost(s650(sequence=1), s650(sequence=3), s650(sequence=2), s650(sequence=4)) == [0, 1, 0, 0]


def test_a_restarted_sequence_is_no_loss() -> None:
    """The numbers restart with the grandmaster, even if one of them was just received."""
    before = [s650(sequence=number) for number in (8, 9)]
    after = [replace(s650(sequence=number), uptime_ticks=50) for number in (1, 2, 9)]
    long_up = [replace(one, uptime_ticks=900_000) for one in before]

    assert lost(*before, *(s650(sequence=number, at=b"later") for number in (1, 2))) == [0, 0, 0, 0]
    assert lost(*long_up, *after) == [0, 0, 0, 0, 6]


def test_a_notification_without_a_number_is_known_by_its_moment() -> None:
    """A link that goes down again later is news; the same moment is not; without a moment all is news."""
    down = trap("1.3.6.1.6.3.1.1.5.3", {"1.3.6.1.2.1.2.2.1.1.4": 4})
    timeless = replace(down, uptime_ticks=None)

    assert lost(down, down, replace(down, uptime_ticks=900), timeless, timeless) == [0, None, 0, 0, 0]


def test_what_is_remembered_is_bounded() -> None:
    """A gap of millions costs no memory, and is still counted."""
    sequences = SequenceTracker()
    sequences.lost_before((1, 3), 1)

    assert sequences.lost_before((1, 3), 5_000_000) == 4_999_998
    assert sequences.lost_before((1, 3), 5_000_000 - REMEMBERED) == 0
    assert [sequences.lost_before((1, 4, alarm_id), 1) for alarm_id in range(2 * REMEMBERED)] == [0] * 2 * REMEMBERED
    assert len(sequences._missing) <= REMEMBERED
    assert len(sequences._last) <= REMEMBERED


def test_a_number_that_no_counter_has_makes_it_unknown() -> None:
    """What is counted as lost goes into 64 bits: the notification is kept as it came, and nothing is lost for it."""
    events = NotificationDecoder("gm-a", PROFILES)
    reported = [events.event(s650(sequence=number)) for number in (-5, 2**63 - 1)]

    assert [(event.action, event.lost) for event in reported if event is not None] == [("raise", 0), ("unknown", 0)]


LINE = "<163>Mar  4 05:06:07 gm-a alarmd: "


@pytest.mark.parametrize(
    ("message", "action", "alarm_id", "severity", "text"),
    [
        ("035,003,Minor, IOC1: Input Port-1 Loss of Signal", "raise", 35, "minor", "IOC1: Input Port-1 Loss of Signal"),
        ("097,000,Major, Antenna open", "raise", 97, "major", "Antenna open"),
        ("097,000,Clear, Antenna open", "clear", 97, "clear", "Antenna open"),
        ("177,000,Event, changed", "event", 177, "event", "changed"),
        ("004,000,Minor, normal", "event", 4, "minor", "normal"),
        ("097,000,Odd, Antenna", "unknown", 97, "odd", "Antenna"),
        ("097,000,Major, ", "raise", 97, "major", "GNSS antenna open"),
        ("started \x07again", "unknown", None, "unknown", "started  again"),
    ],
)
def test_a_line_of_the_alarm_daemon(message: str, action: str, alarm_id: int | None, severity: str, text: str) -> None:
    """Alarm id, index, severity and text; what does not look so is kept as it came."""
    event = NotificationDecoder("gm-a", PROFILES).event_of_line(LINE + message, 9)

    assert event == AlarmEvent(
        "gm-a", 9, action, alarm_id, 3 if alarm_id == 35 else 0, severity, text, at="Mar  4 05:06:07"
    )


@pytest.mark.parametrize(
    ("head", "at"),
    [
        ("<163>1 2026-03-04T05:06:07.123Z gm-a alarmd 812 - - ", "2026-03-04T05:06:07.123Z"),
        ('<163>1 2026-03-04T05:06:07+01:00 gm-a alarmd - ID7 [a@1 b="c"][d@2] \ufeff', "2026-03-04T05:06:07+01:00"),
        ("<163>1 - gm-a alarmd - - - ", None),
        ("<163>2026-03-04T05:06:07.123+00:00 gm-a alarmd[812]: ", "2026-03-04T05:06:07.123+00:00"),
    ],
)
def test_a_line_in_another_form_of_syslog(head: str, at: str | None) -> None:
    """RFC 5424 puts no colon after the program; a relay may write the date as RFC 3339 does."""
    event = NotificationDecoder("gm-a", PROFILES).event_of_line(head + "097,000,Major, Antenna open", 9)

    assert event == AlarmEvent("gm-a", 9, "raise", 97, 0, "major", "Antenna open", at=at)


@pytest.mark.parametrize("line", ["<37>Mar  4 05:06:07 gm-a sshd: Accepted password", "", "<13>alarm 097"])
def test_a_line_of_another_program_is_no_alarm(line: str) -> None:
    """Log-ins and commands are reported over syslog too."""
    assert NotificationDecoder("gm-a", PROFILES).event_of_line(line, 9) is None


def test_the_profile_that_a_grandmaster_serves_numbers_its_alarms() -> None:
    """27 is normal track in a TP5000E; until it is known that the grandmaster is one, it is the best guess's input AIS."""
    notifications = NotificationDecoder("gm-a", PROFILES)
    line = LINE + "027,000,Minor, "
    before = notifications.event_of_line(line, 9)
    notifications.set_served([load("tp5000e")])
    after = notifications.event_of_line(line, 9)

    assert [(event.action, event.text) for event in (before, after) if event] == [
        ("raise", "input AIS"), ("event", "normal track")
    ]  # fmt: skip


def test_numbers_that_many_objects_lack_are_forgotten_oldest_first() -> None:
    """A sender that skips numbers under many OIDs costs no memory: a late notification of an old gap is then new."""
    sequences = SequenceTracker()
    for alarm_id in range(REMEMBERED + 1):
        sequences.lost_before((1, 4, alarm_id), 1)
        sequences.lost_before((1, 4, alarm_id), 3)

    assert len(sequences._missing) == REMEMBERED
    assert ((1, 4, 0), 2) not in sequences._missing
    assert ((1, 4, REMEMBERED), 2) in sequences._missing
