"""
How the demo is shown: by `timesyncd top` in a terminal, by lines in a pipe, and by its progress alone with --json; and its story by
notes on the page's timeline.
"""

from __future__ import annotations

import asyncio
import importlib.util
import signal
import sys
import termios
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Protocol

import aiomqtt
from rich.console import Console

from timesyncd.cli.render import DemoNodeState, demo_screen
from timesyncd.client.api import fetch_part
from timesyncd.config import TOPIC_PREFIX
from timesyncd.errors import TimesyncdError, Unreachable
from timesyncd.messages.notes import OperatorNote
from timesyncd.mqtt.topics import NOTE, encode
from timesyncd.simulation.bed.broker import Mosquitto
from timesyncd.simulation.bed.host import dying_with_parent

#: A `top` that has not ended so long after SIGTERM is killed.
TOP_ENDS_WITHIN_S = 5.0

#: `top` itself shows a daemon that takes longer.
DAEMON_STARTS_WITHIN_S, ASK_EVERY_S = 30.0, 0.2

#: The author of the story's notes, and the node that publishes them.
AUTHOR = "demo"
NOTE_WITHIN_S = 5.0

#: What a killed `top` leaves switched on: the other screen, a hidden cursor, the mouse and bracketed paste.
RESTORE_TERMINAL = "\x1b[?1049l\x1b[?25h\x1b[?1000l\x1b[?1003l\x1b[?1006l\x1b[?1015l\x1b[?2004l\x1b[0m"


def print_progress(text: str) -> None:
    """To stderr: stdout is for the result. A terminal that is gone does not hold up the demo's end."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


class LiveView(Protocol):
    """Where the demo is shown while it runs. `needs_states`: it draws the nodes itself."""

    @property
    def needs_states(self) -> bool: ...

    def show(self, states: Sequence[DemoNodeState], ptp: str) -> None:
        """The newest replies."""

    def ready(self) -> None:
        """Every node has a valid sample."""

    def announce(self, text: str) -> None:
        """An event of the story comes."""


class ProgressLines:
    """Progress and announcements on stderr; at its end the last screen on stdout, unless that is for the result."""

    def __init__(self, page: str, as_json: bool) -> None:
        self.needs_states = not as_json
        self._page = page
        self._last: tuple[Sequence[DemoNodeState], str] | None = None
        print_progress(f"status page: {page}")

    def show(self, states: Sequence[DemoNodeState], ptp: str) -> None:
        self._last = states, ptp

    def ready(self) -> None:
        print_progress("every node has a valid sample")

    def announce(self, text: str) -> None:
        print_progress(text)

    def close(self) -> None:
        if self._last is not None and self.needs_states:
            Console(highlight=False).print(demo_screen(*self._last, self._page))


class Top:
    """`timesyncd top` asks the daemon for all that it shows, the story too."""

    needs_states = False

    def show(self, states: Sequence[DemoNodeState], ptp: str) -> None:
        pass

    def ready(self) -> None:
        pass

    def announce(self, text: str) -> None:
        pass


class StoryNotes:
    """
    What happens in the story as comments, which the hub receives as those of other daemons' operators and stores. Without a broker
    there is none: the story is on the page's head all the same.
    """

    def __init__(self, broker: Mosquitto | None) -> None:
        self._broker = broker
        self._incarnation = time.time_ns()
        self._written = 0

    async def write(self, text: str) -> None:
        """One note, as of now. A broker that does not take it costs the note alone."""
        if self._broker is None:
            return
        self._written += 1
        payload = encode(self._note(text, time.time_ns()))
        with suppress(aiomqtt.MqttError, TimeoutError):
            async with asyncio.timeout(NOTE_WITHIN_S), self._client(self._broker) as client:
                await client.publish(NOTE.topic(TOPIC_PREFIX, AUTHOR), payload, qos=NOTE.qos)

    def _client(self, broker: Mosquitto) -> aiomqtt.Client:
        return aiomqtt.Client(broker.host, broker.port, protocol=aiomqtt.ProtocolVersion.V5)

    def _note(self, text: str, now_ns: int) -> OperatorNote:
        return OperatorNote(
            node=AUTHOR, incarnation=self._incarnation, sequence=self._written,
            id=f"{AUTHOR}-{self._incarnation}-{self._written}", kind="comment", author=AUTHOR, text=text, subject="", finding=None,
            realtime_ns=now_ns, until_realtime_ns=None, published_realtime_ns=now_ns,
        )  # fmt: skip


def is_terminal() -> bool:
    """Whether `top` can be shown: it needs the terminal's keys, its screen, and the extra."""
    streams = (sys.stdin, sys.stdout, sys.stderr)
    return all(stream.isatty() for stream in streams) and importlib.util.find_spec("textual") is not None


@asynccontextmanager
async def live_view(page: str, as_json: bool, ended: asyncio.Event) -> AsyncIterator[LiveView]:
    """`ended` is set when its reader ends the view. Raises TimesyncdError if the view failed."""
    if as_json or not is_terminal():
        lines = ProgressLines(page, as_json)
        yield lines
        lines.close()
        return
    settings = termios.tcgetattr(sys.stdin)
    print_progress(f"status page: {page}\nthe view opens when its daemon replies")
    await _until_answered(page, ended)
    process = await asyncio.create_subprocess_exec(*top_command(page))
    watched = asyncio.create_task(process.wait())
    watched.add_done_callback(lambda _: ended.set())
    try:
        yield Top()
    finally:
        await _end(process, watched)
        with suppress(termios.error, OSError):  # the terminal may be gone
            termios.tcsetattr(sys.stdin, termios.TCSANOW, settings)
    if process.returncode not in (0, -signal.SIGTERM, -signal.SIGHUP, -signal.SIGKILL):
        raise TimesyncdError(f"the view ended with status {process.returncode}")


async def _until_answered(page: str, ended: asyncio.Event) -> None:
    """Until the daemon that `top` asks replies, so that the first screen is of the system and not of a refused connection."""
    for _ in range(int(DAEMON_STARTS_WITHIN_S / ASK_EVERY_S)):
        if ended.is_set():
            return
        with suppress(Unreachable):
            await asyncio.to_thread(fetch_part, page, "node")
            return
        await asyncio.sleep(ASK_EVERY_S)


def top_command(page: str) -> list[str]:
    """A process of its own, so that no lost terminal holds up the demo's end. It takes Ctrl-C as a key, never as a signal."""
    top = [sys.executable, "-m", "timesyncd", "top", "--url", page]
    return dying_with_parent(["sh", "-c", 'trap "" INT; exec "$@"', "sh", *top])


async def _end(process: asyncio.subprocess.Process, watched: asyncio.Task[int]) -> None:
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(TOP_ENDS_WITHIN_S):
            await asyncio.shield(watched)
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        await watched
        with suppress(OSError):
            print(RESTORE_TERMINAL, end="", file=sys.stderr, flush=True)
