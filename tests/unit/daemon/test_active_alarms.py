"""The active alarms of a grandmaster by its own reports."""

from __future__ import annotations

from timesyncd.daemon.node_state import MAX_ALARMS, ActiveAlarms
from timesyncd.sample import Alarm, AlarmEvent

OPEN = Alarm(97, 0, "major", "antenna open", "2026-11-21 02:14:00")


def event(action: str, id: int | None = 97, index: int = 0) -> AlarmEvent:
    return AlarmEvent("gm-a", 1, action, id, index, "major", "antenna open", at="2026-11-21 02:14:00")


def alarms_after(*events: AlarmEvent) -> ActiveAlarms:
    book = ActiveAlarms()
    for each in events:
        book.update(each)
    return book


def test_no_report_is_not_the_absence_of_alarms() -> None:
    """Before a grandmaster reports an alarm, nothing is known; an event that is not an alarm adds nothing."""
    assert alarms_after().active is None
    assert alarms_after(event("event"), event("unknown", id=None)).active is None


def test_raised_until_cleared() -> None:
    """By id and index: two inputs may raise the same alarm."""
    assert alarms_after(event("raise"), event("raise")).active == (OPEN,)
    assert alarms_after(event("raise"), event("clear")).active == ()
    assert alarms_after(event("raise"), event("clear", index=1)).active == (OPEN,)


def test_a_restart_drops_alarms_and_is_a_report() -> None:
    """After it no alarm is active until the grandmaster raises it again."""
    book = alarms_after(event("raise"))

    book.drop_raised_before(1)

    assert book.active == ()


def test_ids_off_the_wire_do_not_fill_the_memory() -> None:
    """Alarms beyond what any grandmaster has are dropped, and those that are kept can still be cleared."""
    book = alarms_after(*(event("raise", id=n) for n in range(2 * MAX_ALARMS)))
    full = book.active
    book.update(event("clear", id=0))

    assert full is not None
    assert book.active == full[1:]
    assert len(full) == MAX_ALARMS
