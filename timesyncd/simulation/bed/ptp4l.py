"""A ptp4l process for the test bed: its configuration and its life."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

from timesyncd.errors import TimesyncdError
from timesyncd.simulation.bed import host
from timesyncd.simulation.bed.host import Namespace

DOMAIN = 24

START_WITHIN_S = 60.0

# free_running: nothing may steer the machine's clock. The two rates of 8 a second make tests short.
_COMMON = {
    "time_stamping": "software",
    "free_running": 1,
    "domainNumber": DOMAIN,
    "logSyncInterval": -3,
    "logMinDelayReqInterval": -3,
    "logAnnounceInterval": 0,
    "summary_interval": 5,
}
_GRANDMASTER = {"priority1": 10, "clockClass": 6, "clockAccuracy": "0x21"}
_NODE = {"slaveOnly": 1}


def configuration(
    uds_address: Path, interfaces: list[str], is_grandmaster: bool, has_read_only_socket: bool, identity: str = ""
) -> str:
    """ptp4l's configuration file. `identity` "": the interface's. The read-only socket (4.x) has one default path, which two ptp4l would share."""
    options = _COMMON | (_GRANDMASTER if is_grandmaster else _NODE) | {"uds_address": uds_address}
    if identity:
        options["clockIdentity"] = identity
    if has_read_only_socket:
        options["uds_ro_address"] = f"{uds_address}.ro"
    lines = ["[global]", *(f"{key} {value}" for key, value in options.items())]
    return "\n".join([*lines, *(f"[{interface}]" for interface in interfaces), ""])


def major_version() -> int:
    """linuxptp's: 3 on Debian 12."""
    output = subprocess.run([host.find("ptp4l"), "-v"], check=False, capture_output=True, text=True).stdout
    found = re.match(r"\D*(\d+)", output)
    if found is None:
        raise TimesyncdError(f"`ptp4l -v` printed {output!r}, which begins with no version")
    return int(found[1])


class Ptp4lProcess:
    """One ptp4l in a namespace; its folder holds socket, configuration and log."""

    def __init__(
        self,
        name: str,
        folder: Path,
        namespace: Namespace,
        interfaces: list[str],
        is_grandmaster: bool,
        identity: str = "",
    ) -> None:
        self.namespace = namespace
        self.uds_address = folder / f"{name}.socket"
        self._name = name
        self._log = folder / f"{name}.log"
        self._configuration = folder / f"{name}.cfg"
        self._configuration.write_text(
            configuration(self.uds_address, interfaces, is_grandmaster, major_version() >= 4, identity)
        )
        self._process = self._start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def restart(self) -> None:
        """Kill the process, also a stopped one, and start it again."""
        self.kill()
        self._process = self._start()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        self.uds_address.unlink(missing_ok=True)
        command = [host.find("ptp4l"), "-f", str(self._configuration), "-m", "-q"]
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                self.namespace.enter(host.dying_with_parent(command)), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self._wait_for_socket(process)
        return process

    def _wait_for_socket(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_WITHIN_S
        while not self.uds_address.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                process.wait()
                raise TimesyncdError(f"ptp4l {self._name} did not start: {self._log.read_text().strip()[-300:]}")
            time.sleep(0.01)
