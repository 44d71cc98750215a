"""
Grandmasters for the acceptance tests: simulated ones, as a process of their own or in a thread of the test's, and how a daemon is
configured for them. Their observers: a client of the broker, a viewer of the page, the status command, a browser.
"""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.request import urlopen

import paho.mqtt.client as paho
from chromium import opened
from paho.mqtt.enums import CallbackAPIVersion

from timesyncd.config import TOPIC_PREFIX
from timesyncd.messages.events import ALARM
from timesyncd.messages.fleet import NODE_PATH
from timesyncd.simulation.bed import host as bed_host
from timesyncd.simulation.bed.broker import Mosquitto
from timesyncd.simulation.bed.daemon import DaemonProcess
from timesyncd.simulation.bed.host import leftovers, marked_environment, new_marker
from timesyncd.simulation.grandmaster.simulated import SimulatedGrandmaster, SimulationPlan, running
from timesyncd.store import history
from timesyncd.store.engine import StoreLocation

#: As short as they may be.
QUICK = {"state_interval_s": 1, "table_interval_s": 1, "timeout_s": 3}

Facts = Mapping[str, Any]
"""What a simulated grandmaster prints of itself, as far as a poller needs it."""
T = TypeVar("T")


@contextmanager
def place() -> Iterator[tuple[Path, str]]:
    """A folder with a path short enough for sockets, and a marker; whatever carries it must have ended."""
    marker = new_marker()
    with tempfile.TemporaryDirectory(prefix="ts-") as folder:
        yield Path(folder), marker

    assert leftovers(marker) == []


def free_udp_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def timesyncd(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "timesyncd", *map(str, arguments)]


@contextmanager
def simulated(marker: str, *options: str | Path) -> Iterator[Facts]:
    """`timesyncd simulate` as a process: the content of its one line."""
    process = subprocess.Popen(
        bed_host.dying_with_parent(timesyncd("simulate", "--json", *options)),
        stdout=subprocess.PIPE,
        env=marked_environment(marker),
        start_new_session=True,
    )
    try:
        assert process.stdout
        yield json.loads(process.stdout.readline())
        process.send_signal(signal.SIGINT)

        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()


class Workshop:
    """`with Workshop() as workshop:` grandmasters run in a thread of their own, so that a test may wait for what they do."""

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._stack = AsyncExitStack()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            asyncio.run_coroutine_threadsafe(self._stack.aclose(), self._loop).result(30)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def open(self, context: AbstractAsyncContextManager[T]) -> T:
        """Enter it there; it is left at the end."""
        return asyncio.run_coroutine_threadsafe(self._stack.enter_async_context(context), self._loop).result(30)

    def grandmasters(self, **plan: Any) -> list[SimulatedGrandmaster]:
        return self.open(running(SimulationPlan(**plan)))

    def do(self, action: Callable[[], T]) -> T:
        """In the grandmasters' thread."""

        async def there() -> T:
            return action()

        return asyncio.run_coroutine_threadsafe(there(), self._loop).result(30)


def grandmaster(name: str, facts: Facts, folder: Path, *, v3: bool = False, https: bool = False, **more: object) -> str:
    """Its section of a daemon's configuration; its secrets go into files. `more` are further keys."""
    host, _, port = facts["snmp"].rpartition(":")
    table = {"name": name, "driver": "timeprovider", "host": host, "port": int(port), **QUICK, **more}
    if v3:
        table["user"] = user(facts["v3"], folder / name)
    else:
        table["community"] = secret(facts["community"], folder / f"{name}.community")
    if https:
        table["https"] = {
            "port": int(facts["https"].rpartition(":")[2]),
            "username": facts["username"],
            "password": secret(facts["password"], folder / f"{name}.web"),
            "fingerprint": facts["fingerprint"],
            "interval_s": 10,
            "timeout_s": 4,
        }
    return section("[[grandmaster]]", table)


def user(v3: Facts, path: Path) -> dict[str, object]:
    phrases = {key: secret(v3[key], path.with_suffix(f".{key}")) for key in ("auth_pass", "priv_pass")}
    return {"name": v3["user"], "auth": v3["auth"], "priv": v3["priv"], **phrases}


def secret(text: str, path: Path) -> dict[str, str]:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return {"file": str(path)}


def section(heading: str, table: Mapping[str, object]) -> str:
    return "\n".join(["", heading, *(f"{json.dumps(key)} = {_toml(value)}" for key, value in table.items()), ""])


def _toml(value: object) -> str:
    match value:
        case dict():
            return "{ " + ", ".join(f"{json.dumps(key)} = {_toml(each)}" for key, each in value.items()) + " }"
        case list() | tuple():
            return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value)


class Listener:
    """`with Listener(broker) as listener:` every message below the prefix, in order, as (topic, content, was it retained)."""

    def __init__(self, broker: Mosquitto) -> None:
        self.messages: list[tuple[str, dict[str, Any], bool]] = []
        self._client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
        self._client.on_connect = lambda client, *_: client.subscribe(f"{TOPIC_PREFIX}/#", qos=1)
        self._client.on_message = self._take
        self._client.connect(broker.host, broker.port)

    def __enter__(self) -> Self:
        self._client.loop_start()
        return self

    def __exit__(self, *_: object) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def _take(self, _client: paho.Client, _data: object, message: paho.MQTTMessage) -> None:
        if message.payload:
            content = json.loads(message.payload)
            self.messages.append((message.topic.removeprefix(f"{TOPIC_PREFIX}/"), content, message.retain))

    def of(self, topic: str) -> list[dict[str, Any]]:
        """What was published on a topic, oldest first."""
        return [content for each, content, _ in list(self.messages) if each == topic]

    def alarms(self, subject: str) -> list[dict[str, Any]]:
        """The published alarm events of a grandmaster."""
        return [event["data"] for event in self._events(subject) if event["type"] == ALARM]

    def findings(self, subject: str) -> list[tuple[str, dict[str, Any]]]:
        """The published finding events of a grandmaster, each with its node."""
        events = [event for event in self._events(subject) if event["type"].startswith("timesyncd.finding.")]
        return [(event["source"].removeprefix(NODE_PATH), event["data"]) for event in events]

    def _events(self, subject: str) -> list[dict[str, Any]]:
        return [
            event
            for topic, event, _ in list(self.messages)
            if topic.endswith("/event") and event.get("subject") == subject
        ]


class Viewer:
    """`with Viewer(node) as viewer:` every event that a page is sent, in order, as (kind, content)."""

    def __init__(self, node: DaemonProcess) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self._stream = urlopen(f"{node.page}events", timeout=60)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._stream.close()

    def _read(self) -> None:
        """Once a second at least something comes."""
        kind = ""
        while not self._over.is_set() and (line := self._stream.readline()):
            key, _, value = line.decode().rstrip("\n").partition(": ")
            if key == "event":
                kind = value
            elif key == "data":
                self.events.append((kind, json.loads(value)))

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [content for each, content in list(self.events) if each == kind]


def stored_alarms(node: DaemonProcess, name: str) -> list[dict[str, Any]]:
    """What the node's store holds of the grandmaster's own reports."""
    return [event for event in history.events(StoreLocation(node.store), name, 0, 2**62) if event["kind"] == "alarm"]


def screen(node: DaemonProcess, *arguments: str) -> str:
    """What `timesyncd status` prints of it, on a wide terminal."""
    command = timesyncd("status", *arguments, "--url", node.page)
    return subprocess.run(
        command, check=False, capture_output=True, text=True, env=marked_environment(node.marker) | {"COLUMNS": "400"}
    ).stdout


def page(node: DaemonProcess, holds: Callable[[str], bool]) -> str:
    """What a reader of its page sees in a browser, in the views of findings, grandmasters and its node, once it holds."""

    async def shown() -> str:
        async with opened(node.page) as browser, asyncio.timeout(60):
            while True:
                texts = []
                for view in ("timeline", "grandmaster", "node"):
                    go = f"history.pushState(null, '', '/{view}'); dispatchEvent(new PopStateEvent('popstate'))"
                    await browser.evaluate(go)
                    texts.append(str(await browser.evaluate("document.body.innerText")))
                if holds("\n".join(texts)):
                    return "\n".join(texts)
                await asyncio.sleep(0.5)

    return asyncio.run(shown())
