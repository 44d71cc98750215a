"""Other nodes' daemons: what `[[web.peer]]` configures of them, and the measured offsets that they serve at `/api/v1/stability/readings`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlencode

from pydantic import ValidationError

from timesyncd.client.api import fetch_part
from timesyncd.clocks import NS_PER_S
from timesyncd.config import WebSettings
from timesyncd.errors import ConfigError, Malformed, Refused
from timesyncd.messages.stability import TimeErrorReadings
from timesyncd.stability.readings import Reading

#: Of one request: at 32 readings a second 28,800 of them, below what a daemon serves at once.
_PART_NS = 900 * NS_PER_S
#: So many readings take a busy daemon seconds, and another one may be before this request.
_RESPONSE_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class PeerNode:
    """The daemon of the node `name`, at `url`; `token` "": it needs none."""

    name: str
    url: str
    token: str

    def readings(self, source: str, since_ns: int, until_ns: int) -> Iterator[Reading]:
        """As `peer_readings`; Refused also if another node answers there, whose offsets are not this node's."""
        return peer_readings(self.url, source, since_ns, until_ns, self.token, self.name)


def configured_peers(settings: WebSettings) -> dict[str, PeerNode]:
    """By name. Raises ConfigError for a name that two of them have, and for a secret that cannot be read."""
    found: dict[str, PeerNode] = {}
    for index, peer in enumerate(settings.peer):
        if peer.name in found:
            raise ConfigError(
                f"web.peer[{index}].name = {peer.name!r}: another peer has this name; name each node once"
            )
        token = "" if peer.token is None else peer.token.reveal().get_secret_value().strip()
        found[peer.name] = PeerNode(peer.name, peer.url, token)
    return found


def peer_readings(
    url: str, source: str, since_ns: int, until_ns: int, token: str | None = None, node: str | None = None
) -> Iterator[Reading]:
    """
    The offsets of `source` on the daemon at `url`, the oldest first. `token` None: the one in the environment's
    TIMESYNCD_TOKEN; `node` None: of whichever node the daemon there is.

    Raises Unreachable if it does not respond or knows no such source, Refused if it has no readings of it or is another node,
    and Malformed if its reply is another one.
    """
    for begin_ns in range(since_ns, until_ns, _PART_NS):
        query = {"source": source, "since": begin_ns, "until": min(begin_ns + _PART_NS, until_ns)}
        try:
            body = fetch_part(url, f"stability/readings?{urlencode(query)}", token, _RESPONSE_TIMEOUT_S)
            part = TimeErrorReadings.model_validate(body)
        except ValidationError:
            raise Malformed(f"{url}: it serves no readings; is its timesyncd of another version?") from None
        if node is not None and part.node != node:
            raise Refused(f"{url}: the daemon there is the node {part.node}, not {node}")
        if part.problem is not None:
            raise Refused(f"{url}: {part.problem}")
        for at_ns, te_ns, reference in zip(part.at_ns, part.te_ns, part.reference, strict=False):
            yield Reading(at_ns, te_ns, reference)
