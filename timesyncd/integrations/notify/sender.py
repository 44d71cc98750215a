"""
Sends a daemon's findings to the places that the configuration names, by apprise. Needs the notify extra.

Each place has a thread of its own, so that one that is slow or away delays neither the daemon nor the others.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Collection, Sequence

from apprise import Apprise, NotifyFormat, NotifyType

from timesyncd.clocks import NS_PER_S, Clocks
from timesyncd.config.sections import NotifySettings
from timesyncd.errors import ConfigError
from timesyncd.integrations.notify.grouping import Grouping, Key, Notice
from timesyncd.messages.events import FINDING
from timesyncd.messages.fleet import CloudEvent
from timesyncd.messages.node import FindingMessage

log = logging.getLogger(__name__)

TICK_S = 1.0

#: Notices that wait for a place that does not answer. The oldest waits longest; a further one is dropped, with a line.
MAX_WAITING = 20

#: Waits before another try, in seconds. After the last one the notice is dropped.
RETRY_AFTER_S = (10.0, 60.0, 300.0)

_TYPES = {"critical": NotifyType.FAILURE, "warning": NotifyType.WARNING, "info": NotifyType.INFO}


class Notifier:
    """
    Gets the daemon's events. `handled` gives the findings that somebody acknowledged or silenced, as of now.

    Raises ConfigError for a URL that apprise does not know; its text omits the URL, which is a secret.
    """

    def __init__(
        self,
        settings: Sequence[NotifySettings],
        node: str,
        clocks: Clocks,
        handled: Callable[[], Collection[Key]],
    ) -> None:
        # apprise logs its URLs' hosts and each failure; an outage is one line here.
        logging.getLogger("apprise").setLevel(logging.CRITICAL)
        self._node = node
        self._clocks = clocks
        self._handled = handled
        self._places = [_Place(each, number) for number, each in enumerate(settings)]

    async def run(self) -> None:
        for place in self._places:
            place.start()
        while True:
            await asyncio.sleep(TICK_S)
            self._send_due()

    def accept_event(self, event: CloudEvent, realtime_ns: int) -> None:
        """An event that the daemon publishes."""
        if event.type.startswith(FINDING):
            finding = FindingMessage.model_validate(event.data)
            for place in self._places:
                place.grouping.accept(finding, self._clocks.boottime_ns())

    def _send_due(self) -> None:
        now_ns = self._clocks.boottime_ns()
        handled = self._handled()
        for place in self._places:
            found = place.grouping.due(handled, self._node, now_ns)
            if found is not None:
                place.put(found)


class _Place:
    """One receiver, what it is to learn, and the thread that sends it."""

    def __init__(self, settings: NotifySettings, number: int) -> None:
        self.grouping = Grouping(settings.severity, round(settings.every_s * NS_PER_S))
        self._name = f"notify[{number}]"
        self._apprise = Apprise()
        if not self._apprise.add(settings.url.reveal().get_secret_value()):
            raise ConfigError(f"{self._name}.url: apprise knows no such service; see its list of URLs")
        self._queue: queue.Queue[Notice] = queue.Queue(MAX_WAITING)

    def start(self) -> None:
        threading.Thread(target=self._run, name=self._name, daemon=True).start()

    def put(self, notice: Notice) -> None:
        try:
            self._queue.put_nowait(notice)
        except queue.Full:
            log.warning("%s: %d notices wait already; dropped: %s", self._name, MAX_WAITING, notice.title)

    def _run(self) -> None:
        while True:
            self._send(self._queue.get())

    def _send(self, notice: Notice) -> None:
        kind = _TYPES[notice.severity] if notice.severity is not None else NotifyType.SUCCESS
        for wait_s in (*RETRY_AFTER_S, None):
            try:
                is_sent = bool(
                    self._apprise.notify(
                        body=notice.body,
                        title=notice.title,
                        notify_type=kind,
                        # A finding may quote anything: apprise escapes it where HTML or mark-up is sent.
                        body_format=NotifyFormat.TEXT,
                    )
                )
            except Exception as error:  # noqa: BLE001  apprise has a hundred services, each with errors of its own
                log.warning("%s: %s: %s", self._name, type(error).__name__, error)
                is_sent = False
            if is_sent:
                return
            if wait_s is None:
                log.warning("%s: not sent after %d tries: %s", self._name, len(RETRY_AFTER_S) + 1, notice.title)
            else:
                log.info("%s: not sent, next try in %.0f s: %s", self._name, wait_s, notice.title)
                time.sleep(wait_s)
