"""A daemon's announcing part without its daemon: what it publishes, and what the web room is answered."""

from __future__ import annotations

from timesyncd.clocks import FakeClocks, Moment
from timesyncd.config import Config
from timesyncd.daemon.hub_service import HubService
from timesyncd.daemon.node_state import NodeView
from timesyncd.daemon.publisher import Parts, Publisher
from timesyncd.daemon.web_view import WebView
from timesyncd.messages.events import CloudEvents


class Announcing:
    def __init__(self, config: Config, view: NodeView, clocks: FakeClocks, parts: Parts | None = None) -> None:
        parts = parts or Parts()
        self.desk = HubService(config.hub, config.node.name, Moment.read(clocks), alone=config.mqtt is None)
        self.announcer = Publisher(config, view, self.desk, parts, clocks, CloudEvents(config.node.name, 1))
        self.web = WebView(config, view, self.desk, self.announcer, parts, clocks)
