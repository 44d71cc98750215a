"""A daemon's announcing part without its daemon: what it publishes, and what the web room is answered."""

from __future__ import annotations

from timesyncd.announce import Announcer, Parts
from timesyncd.clocks import FakeClocks
from timesyncd.cloud_events import CloudEvents
from timesyncd.config import Config
from timesyncd.fleet_desk import FleetDesk
from timesyncd.view import Moment, NodeView
from timesyncd.web_view import WebView


class Announcing:
    def __init__(self, config: Config, view: NodeView, clocks: FakeClocks, parts: Parts | None = None) -> None:
        parts = parts or Parts()
        self.desk = FleetDesk(config.hub, config.node.name, Moment.read(clocks), alone=config.mqtt is None)
        self.announcer = Announcer(config, view, self.desk, parts, clocks, CloudEvents(config.node.name, 1))
        self.web = WebView(config, view, self.desk, self.announcer, parts, clocks)
