"""A Mosquitto of our own on a free port of the loopback."""

from __future__ import annotations

import getpass
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from timesyncd.errors import TimesyncdError
from timesyncd.simulation.bed import host as bed_host
from timesyncd.simulation.bed.host import marked_environment, new_marker, run

HOST = "127.0.0.1"

#: Below the ports that Linux gives by itself (ip_local_port_range), and above the usual services.
PORTS = range(10_000, 20_000)

START_WITHIN_S = 60.0


@dataclass(frozen=True)
class CertificateFiles:
    """The files of a certificate and of its private key, in PEM form."""

    certificate: Path
    key: Path


class Mosquitto:
    """
    `with Mosquitto() as broker:` listens at `broker.host`, `broker.port`; the port stays the same over stop and start.

    `users` (name -> password): who may connect; None = anybody. `tls`: what it shows; with `client_ca` only those connect that show a
    certificate signed by that, and are called by its name. `acl`: the lines of Mosquitto's acl_file; None = everybody may all.
    Nothing is kept on disk. It dies with the thread that started it. Raises TimesyncdError when it does not start.
    """

    host = HOST

    def __init__(
        self,
        users: dict[str, str] | None = None,
        marker: str | None = None,
        tls: CertificateFiles | None = None,
        client_ca: Path | None = None,
        acl: str | None = None,
    ) -> None:
        self.users = users
        self._tls = tls
        self._client_ca = client_ca
        self._acl = acl
        self._environment = marked_environment(marker or new_marker())
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="timesyncd-broker-"))
        try:
            self.port = free_port()
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def pid(self) -> int | None:
        """None while it is stopped."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Returns when it accepts connections; `users` may have changed meanwhile."""
        (self._folder / "mosquitto.conf").write_text(self._configuration())
        command = [bed_host.find("mosquitto"), "-c", str(self._folder / "mosquitto.conf")]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                bed_host.dying_with_parent(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
            )
        self._wait_until_listening()

    def stop(self) -> None:
        """Kill it, as a crash would: clients see the connection end. Nothing to do when it does not run."""
        if self._process:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process, "the broker is stopped"
        self._process.send_signal(number)

    def _configuration(self) -> str:
        # max_queued_messages: with the default a subscriber at QoS 1 loses retained messages unseen; with 0, which is no limit,
        # Mosquitto 2.0.11 hangs up on who publishes what it may not, instead of saying so.
        # user: else Mosquitto, started by root, gives its rights up and cannot read this folder.
        options = [
            f"listener {self.port} {HOST}",
            "persistence false",
            "max_queued_messages 1000000",
            f"user {getpass.getuser()}",
        ]
        return "\n".join([*options, *self._tls_options(), *self._access_options(), ""])

    def _tls_options(self) -> list[str]:
        if self._tls is None:
            return []
        options = [f"certfile {self._tls.certificate}", f"keyfile {self._tls.key}"]
        if self._client_ca is not None:
            options += [f"cafile {self._client_ca}", "require_certificate true", "use_identity_as_username true"]
        return options

    def _access_options(self) -> list[str]:
        options = [f"allow_anonymous {'true' if self.users is None else 'false'}"]
        if self.users is not None:
            options.append(f"password_file {self._password_file(self.users)}")
        if self._acl is not None:
            path = self._folder / "acl"
            path.write_text(self._acl)
            options.append(f"acl_file {path}")
        return options

    def _password_file(self, users: dict[str, str]) -> Path:
        path = self._folder / "passwords"
        path.unlink(missing_ok=True)
        path.touch(0o600)
        for name, password in users.items():
            run([bed_host.find("mosquitto_passwd"), "-b", str(path), name, password])
        return path

    def _wait_until_listening(self) -> None:
        assert self._process
        deadline = time.monotonic() + START_WITHIN_S
        while not _accepts(self.port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise TimesyncdError(f"mosquitto did not start: {(self._folder / 'log').read_text().strip()[-300:]}")
            time.sleep(0.02)


def free_port() -> int:
    """
    A port of the loopback that is free now, for TCP and UDP. The kernel gives none of PORTS by itself, so no connection
    of another process takes it before it is used.
    """
    while True:
        port = random.choice(PORTS)
        with socket.socket(type=socket.SOCK_STREAM) as stream, socket.socket(type=socket.SOCK_DGRAM) as datagrams:
            try:
                stream.bind((HOST, port))
                datagrams.bind((HOST, port))
            except OSError:
                continue
            return port


def _accepts(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=1).close()
    except OSError:
        return False
    return True
