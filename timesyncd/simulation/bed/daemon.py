"""A timesyncd daemon as a process of its own, with a configuration and a folder of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from timesyncd.client.api import fetch_all
from timesyncd.errors import TimesyncdError, Unreachable
from timesyncd.simulation.bed import host
from timesyncd.simulation.bed.broker import Mosquitto, free_port
from timesyncd.simulation.bed.host import marked_environment
from timesyncd.simulation.bed.ptp4l import DOMAIN

#: Where the configuration finds the simulated grandmasters' community.
COMMUNITY = "TIMESYNCD_TESTBED_COMMUNITY"

_NODE = """\
[node]
name = "{name}"
topology = "{topology}"
runtime_dir = "{folder}"

[web]
port = {port}
"""

_STORE = """
[store]
path = "{store}"
"""

_SOURCE = """
[[source]]
name = "ptp-{name}"
driver = "ptp4l"
uds_address = "{uds_address}"
domain = {domain}
[source.bounds]
{bounds}
"""

_MQTT = """
[mqtt]
host = "{broker.host}"
port = {broker.port}
"""

_GRANDMASTER = """
[[grandmaster]]
name = "{name}"
driver = "timeprovider"
host = "127.0.0.1"
port = {port}
community = {{ env = "{community}" }}
{options}
"""


@dataclass
class DaemonProcess:
    """
    `with DaemonProcess(...) as node:` runs until the end; the page answers by then. `kill`, `start` and `pause` in between.

    `uds_address`: where its ptp4l listens; "" for a daemon without a clock source. `grandmasters`: name -> SNMP port, each with
    `grandmaster_options` as TOML. `hub`: this daemon joins the jobs of all nodes that the broker brings. `more`: additional configuration, as TOML. `enter` is put before its
    command and has to execute the rest of it: it keeps the process id.
    """

    name: str
    folder: Path
    uds_address: str
    marker: str
    broker: Mosquitto | None = None
    hub: bool = False
    grandmasters: dict[str, int] = field(default_factory=dict)
    bounds: dict[str, int] = field(default_factory=dict)
    more: str = ""
    grandmaster_options: str = ""
    topology: str = ""
    has_store: bool = True
    enter: tuple[str, ...] = ()

    def __enter__(self) -> Self:
        self.configure()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def configure(self) -> None:
        """Choose the page's port and write the configuration file."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.page = f"http://127.0.0.1:{self.port}/"
        self.store = self.folder / "history.sqlite"
        self.config = self.folder / "timesyncd.toml"
        self.config.write_text(self._text())

    def start(self, within_s: float = 60.0) -> None:
        """Returns when the page answers; raises TimesyncdError with the log's end when it does not."""
        self.launch()
        deadline = time.monotonic() + within_s
        while not self._answers():
            self.check()
            if time.monotonic() > deadline:
                self.stop()
                raise TimesyncdError(f"{self.name}: the daemon did not answer within {within_s:g} s: {self._log_end()}")
            time.sleep(0.1)

    def launch(self) -> None:
        """Start it and wait for nothing."""
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                host.dying_with_parent(
                    [*self.enter, sys.executable, "-m", "timesyncd", "run", "--config", str(self.config)]
                ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=marked_environment(self.marker) | {COMMUNITY: "public"},
                start_new_session=True,
            )

    def check(self) -> None:
        """Raises TimesyncdError with the log's end when it has ended."""
        if self.process.poll() is not None:
            raise TimesyncdError(f"{self.name}: the daemon ended: {self._log_end()}")

    def stop(self) -> None:
        """As a service manager would: SIGTERM, and SIGKILL after ten seconds."""
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def pause(self) -> None:
        """SIGSTOP."""
        os.kill(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    def _answers(self) -> bool:
        try:
            fetch_all(self.page)
        except Unreachable:
            return False
        return True

    def _log_end(self) -> str:
        return (self.folder / "log").read_text()[-2_000:]

    def _text(self) -> str:
        text = _NODE.format(name=self.name, topology=self.topology, folder=self.folder, port=self.port)
        if self.has_store:
            text += _STORE.format(store=self.store)
        if self.uds_address:
            bounds = "\n".join(f"{key} = {value}" for key, value in self.bounds.items())
            text += _SOURCE.format(name=self.name, uds_address=self.uds_address, domain=DOMAIN, bounds=bounds)
        if self.broker is not None:
            text += _MQTT.format(broker=self.broker)
        if self.hub:
            text += "\n[hub]\n"
        for name, port in self.grandmasters.items():
            text += _GRANDMASTER.format(name=name, port=port, community=COMMUNITY, options=self.grandmaster_options)
        return text + self.more
