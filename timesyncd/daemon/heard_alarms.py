"""The alarms that stand on a unit by what it sent itself, where it serves no table of them. Pure."""

from __future__ import annotations

from timesyncd.sample import Alarm, AlarmEvent

#: No unit has so many; the ids come off the wire.
MOST = 200


class HeardAlarms:
    """What was raised and not cleared since. What was sent while nobody listened, or was lost on the way, is not in it."""

    def __init__(self) -> None:
        self._standing: dict[tuple[int | None, int], tuple[Alarm, int]] = {}
        self._heard = False

    def note(self, event: AlarmEvent) -> None:
        key = (event.id, event.index)
        self._heard = self._heard or event.action in ("raise", "clear")
        if event.action == "clear":
            self._standing.pop(key, None)
        elif event.action == "raise" and event.id is not None and (len(self._standing) < MOST or key in self._standing):
            alarm = Alarm(event.id, event.index, event.severity, event.text, event.at)
            self._standing[key] = alarm, event.boottime_ns

    def forget(self, until_ns: int) -> None:
        """
        The unit restarted after `until_ns` (CLOCK_BOOTTIME): what still stands it says again, and often before a poll tells of
        the restart.
        """
        self._standing = {key: heard for key, heard in self._standing.items() if heard[1] > until_ns}

    @property
    def standing(self) -> tuple[Alarm, ...] | None:
        """None: it never said anything of an alarm."""
        return tuple(alarm for alarm, _ in self._standing.values()) if self._heard else None
