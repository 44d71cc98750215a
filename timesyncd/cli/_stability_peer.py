"""The measured offsets of another node, as its daemon serves them at `/api/v1/stability/readings`."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlencode

from pydantic import ValidationError

from timesyncd.client.api import fetch_part
from timesyncd.clocks import NS_PER_S
from timesyncd.errors import Malformed, Refused
from timesyncd.messages.stability import TimeErrorReadings
from timesyncd.stability.readings import Reading

#: Of one request: at 32 readings a second 28,800 of them, below what a daemon serves at once.
_PART_NS = 900 * NS_PER_S


def peer_readings(url: str, source: str, since_ns: int, until_ns: int) -> Iterator[Reading]:
    """
    The offsets of `source` on the daemon at `url`, the oldest first. Raises Unreachable if it does not respond or knows no
    such source, Refused if it has no readings of it, and Malformed if its reply is another one.
    """
    for begin_ns in range(since_ns, until_ns, _PART_NS):
        query = {"source": source, "since": begin_ns, "until": min(begin_ns + _PART_NS, until_ns)}
        try:
            part = TimeErrorReadings.model_validate(fetch_part(url, f"stability/readings?{urlencode(query)}"))
        except ValidationError:
            raise Malformed(f"{url}: it serves no readings; is its timesyncd of another version?") from None
        if part.problem is not None:
            raise Refused(f"{url}: {part.problem}")
        for at_ns, te_ns, reference in zip(part.at_ns, part.te_ns, part.reference, strict=False):
            yield Reading(at_ns, te_ns, reference)
