"""A daemon's publisher without its daemon: what it publishes, and what the web API answers."""

from __future__ import annotations

from fake_clocks import FakeClocks

from timesyncd.clocks import Moment
from timesyncd.config import Config
from timesyncd.daemon.hub_service import HubService
from timesyncd.daemon.node_state import NodeView
from timesyncd.daemon.publisher import Parts, Publisher
from timesyncd.daemon.web_view import WebView
from timesyncd.messages.events import CloudEvents


class PublisherLab:
    def __init__(self, config: Config, view: NodeView, clocks: FakeClocks, parts: Parts | None = None) -> None:
        parts = parts or Parts()
        self.service = HubService(config.hub, config.node.name, Moment.read(clocks), alone=config.mqtt is None)
        self.publisher = Publisher(config, view, self.service, parts, clocks, CloudEvents(config.node.name, 1))
        self.web = WebView(config, view, self.service, self.publisher, parts, clocks)
