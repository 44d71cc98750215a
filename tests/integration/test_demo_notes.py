"""The demo's story on the timeline: what it writes, as the hub keeps it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from timesyncd.cli._demo_view import StoryNotes
from timesyncd.simulation.bed.broker import Mosquitto
from timesyncd.simulation.bed.daemon import DaemonProcess
from timesyncd.simulation.bed.host import new_marker

pytestmark = pytest.mark.integration

WITHIN_S = 60.0


async def until(hub: DaemonProcess, path: str, holds: Callable[[str], bool]) -> str:
    """The first answer that holds. Raises TimeoutError."""
    async with asyncio.timeout(WITHIN_S):
        while not holds(answer := await asyncio.to_thread(ask, hub, path)):
            await asyncio.sleep(0.1)
        return answer


def ask(hub: DaemonProcess, path: str) -> str:
    with urlopen(f"{hub.page}{path}", timeout=WITHIN_S) as response:
        text: str = response.read().decode()
        return text


def items(answer: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(answer)["items"]
    return found


async def test_an_event_of_the_story_is_a_comment_on_the_timeline(folder: Path) -> None:
    """The hub stores what the demo publishes, in its order and signed by it; without a broker nothing is written."""
    marker = new_marker()
    with Mosquitto(marker=marker) as broker, DaemonProcess("hub", folder, "", marker, broker, hub=True) as hub:
        await until(hub, "metrics", lambda text: "timesyncd_mqtt_connected 1.0" in text)
        notes = StoryNotes(broker)
        for text in ("the antenna of gm-1 is cut", "remedy: the antenna is connected again"):
            await notes.write(text)
        stored = items(await until(hub, "api/v1/notes", lambda answer: len(items(answer)) == 2))

    await StoryNotes(None).write("nothing")
    assert [(each["author"], each["kind"], each["text"]) for each in reversed(stored)] == [
        ("demo", "comment", "the antenna of gm-1 is cut"), ("demo", "comment", "remedy: the antenna is connected again"),
    ]  # fmt: skip
