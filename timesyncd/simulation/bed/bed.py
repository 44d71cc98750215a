"""`PtpBed`: a real PTP grandmaster with real slaves, and what is true of their clocks."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from timesyncd.errors import TimesyncdError
from timesyncd.simulation.bed import host
from timesyncd.simulation.bed.host import marked_environment, new_marker
from timesyncd.simulation.bed.relay import OffsetProfile, Piece

GRANDMASTER = "grandmaster"


@dataclass(frozen=True, slots=True)
class Topology:
    """
    The names of the nodes: straight at the grandmaster, or behind a relay each. `identity` is the grandmaster's clock
    identity as ptp4l writes it; "": of its interface. `is_transparent`: the relays are transparent clocks.
    """

    direct: tuple[str, ...] = ()
    relayed: tuple[str, ...] = ()
    identity: str = ""
    is_transparent: bool = False

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Topology:
        fields = json.loads(text)
        return cls(tuple(fields["direct"]), tuple(fields["relayed"]), fields["identity"], fields["is_transparent"])


@dataclass(slots=True)
class BedProcess:
    """One ptp4l. `namespace_pid` is a process that stays inside its namespace for as long as the bed exists."""

    pid: int
    namespace_pid: int
    uds_address: str

    def enter(self) -> list[str]:
        """What to put before a command so that it runs in this ptp4l's network namespace; `lo` is up there."""
        command = [host.find("nsenter"), f"--target={self.namespace_pid}", "--net"]
        return command if os.geteuid() == 0 else [*command, "--user", "--preserve-credentials"]


class PtpBed:
    """
    `with PtpBed(direct=["a"], relayed=["b"]) as bed:`; every ptp4l runs then, and the first good path delay comes about
    15 s later. Entering raises TimesyncdError when something is missing or may not be done. All calls block, for
    milliseconds. A ptp4l may be signalled by its pid; `restart` revives one that was killed.
    """

    grandmaster: BedProcess
    nodes: dict[str, BedProcess]

    def __init__(
        self,
        *,
        direct: tuple[str, ...] = (),
        relayed: tuple[str, ...] = (),
        marker: str | None = None,
        identity: str = "",
        is_transparent: bool = False,
    ) -> None:
        """`marker`: what `leftovers` shall look for; None = one of its own. The rest as in Topology."""
        self.marker = marker or new_marker()
        self._folder: Path | None = None
        self._topology = Topology(direct, relayed, identity, is_transparent)
        self._truth = {name: OffsetProfile() for name in (*direct, *relayed)}

    def __enter__(self) -> Self:
        command = [*_in_own_network(), sys.executable, "-m", "timesyncd.simulation.bed", self._topology.to_json()]
        self._complaints = tempfile.TemporaryFile("w+")
        # Its own session, so that Ctrl-C in a terminal reaches our maker alone, who then closes us in order.
        self._helper = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            text=True,
            env=marked_environment(self.marker),
            start_new_session=True,
        )
        try:
            processes = {name: BedProcess(**fields) for name, fields in self._answer().items()}
        except BaseException:
            self.close()
            raise
        self.grandmaster = processes.pop(GRANDMASTER)
        self._folder = Path(self.grandmaster.uds_address).parent
        self.nodes = processes
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the helper, and with it everything; returns when that is done."""
        self._helper.communicate()
        self._complaints.close()
        if self._folder:  # the helper removed it, unless it was killed
            shutil.rmtree(self._folder, ignore_errors=True)

    def true_offset_ns(self, node: str, realtime_ns: int) -> int:
        """The node's clock minus the grandmaster's, as the node can see it, at a moment not before the last set_relay."""
        return -self._truth[node].x_ns(realtime_ns)

    def true_rate_ppb(self, node: str) -> int:
        """How fast the true offset of this node grows since the last set_relay."""
        pieces = self._truth[node].pieces
        return -pieces[-1].rate_ppb if pieces else 0

    def set_relay(
        self,
        node: str,
        *,
        x_ns: int | None = None,
        rate_ppb: int = 0,
        delay_to_node_ns: int = 0,
        delay_to_grandmaster_ns: int = 0,
    ) -> Piece:
        """
        Change all that the node's relay does: the piece of x(t) that begins now (x_ns None = without a step), and the
        extra delays. Returns the piece; `true_offset_ns` is exact for every moment before and after its start.
        """
        answer = self._ask(
            relay=node,
            x_ns=x_ns,
            rate_ppb=rate_ppb,
            delay_to_node_ns=delay_to_node_ns,
            delay_to_grandmaster_ns=delay_to_grandmaster_ns,
        )
        piece = Piece(*answer["piece"])
        self._truth[node].pieces.append(piece)
        return piece

    def restart(self, name: str) -> None:
        """Kill this ptp4l (a node's name, or GRANDMASTER) and start it again; its pid changes."""
        process = self.grandmaster if name == GRANDMASTER else self.nodes[name]
        process.pid = self._ask(restart=name)["pid"]

    def _ask(self, **request: object) -> dict[str, Any]:
        assert self._helper.stdin
        with contextlib.suppress(BrokenPipeError):  # the missing answer shows it
            self._helper.stdin.write(json.dumps(request) + "\n")
            self._helper.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._helper.stdout
        line = self._helper.stdout.readline()
        if not line:
            self._complaints.seek(0)
            raise TimesyncdError(f"test bed: {self._complaints.read().strip()[-500:] or 'its helper ended'}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise TimesyncdError(f"test bed: {answer['error']}")
        return answer


def _in_own_network() -> list[str]:
    """The helper's namespace is the relay's; who is not root becomes root of a user namespace for it."""
    own = [host.find("unshare"), "--net"]
    return own if os.geteuid() == 0 else [*own, "--user", "--map-root-user"]
