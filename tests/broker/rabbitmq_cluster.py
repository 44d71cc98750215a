"""Three nodes of RabbitMQ 4 as one cluster, in a root of Debian 13 of their own; with MQTT on a port of the loopback each."""

from __future__ import annotations

import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

import paho.mqtt.client as paho
from late_hubs import RunningBroker
from paho.mqtt.enums import CallbackAPIVersion

from timesyncd.simulation.bed import host
from timesyncd.simulation.bed.broker import free_port

NODES = 3
#: Three nodes of Erlang start together on a busy machine.
START_WITHIN_S = 300.0
#: RabbitMQ, and what its scripts run.
SUITE, PACKAGE = "trixie", "rabbitmq-server"
BESIDE = ("base-files", "coreutils", "dash", "grep", "hostname", "libc-bin", "mawk", "procps", "sed", "util-linux")

#: Erlang's own threads wait without spinning, on few cores: three nodes share this machine.
_ERLANG = "+S 1:1 +sbwt none +sbwtdcpu none +sbwtdio none"

#: As the first process of a process namespace: when it ends, the nodes and Erlang's epmd end too.
_SCRIPT = """
set -eu
for place in proc dev; do mount --rbind /$place {root}/$place; done
mount --bind {folder} {root}/srv
export HOME=/srv ERL_EPMD_PORT={epmd} ERL_EPMD_ADDRESS=127.0.0.1 LC_ALL=C.UTF-8
export RABBITMQ_ENABLED_PLUGINS_FILE=/srv/plugins RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="{erlang}"
for number in {numbers}; do
    RABBITMQ_NODENAME=r$number@localhost RABBITMQ_DIST_PORT=$(cat {folder}/$number.dist) RABBITMQ_CONFIG_FILE=/srv/$number.conf \
    RABBITMQ_MNESIA_BASE=/srv/$number RABBITMQ_LOG_BASE=/srv/$number.log RABBITMQ_LOGS=- RABBITMQ_PID_FILE=/srv/$number.pid \
    chroot {root} /usr/lib/rabbitmq/bin/rabbitmq-server >{folder}/$number.out 2>&1 &
done
wait
"""

_SETTINGS = """\
listeners.tcp.1 = 127.0.0.1:{amqp}
mqtt.listeners.tcp.1 = 127.0.0.1:{mqtt}
mqtt.allow_anonymous = true
anonymous_login_user = guest
anonymous_login_pass = guest
cluster_formation.peer_discovery_backend = classic_config
{names}
"""


class RabbitMqCluster:
    """`with RabbitMqCluster(root) as cluster:` starts it and waits for nothing; `brokers` are its nodes. Needs root."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.brokers = [RunningBroker(free_port()) for _ in range(NODES)]

    def __enter__(self) -> Self:
        self.folder = Path(tempfile.mkdtemp(prefix="timesyncd-rabbitmq-"))
        cookie = self.folder / ".erlang.cookie"
        cookie.write_text(secrets.token_hex(16))
        cookie.chmod(0o400)
        (self.folder / "plugins").write_text("[rabbitmq_mqtt].\n")
        names = [f"cluster_formation.classic_config.nodes.{number} = r{number}@localhost" for number in range(NODES)]
        for number, broker in enumerate(self.brokers):
            text = _SETTINGS.format(amqp=free_port(), mqtt=broker.port, names="\n".join(names))
            (self.folder / f"{number}.conf").write_text(text)
            (self.folder / f"{number}.dist").write_text(f"{free_port()}\n")
        script = _SCRIPT.format(
            root=self._root,
            folder=self.folder,
            epmd=free_port(),
            erlang=_ERLANG,
            numbers=" ".join(map(str, range(NODES))),
        )
        command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script]
        self._process = subprocess.Popen(host.dying_with_parent(command), stdin=subprocess.DEVNULL)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def wait(self) -> None:
        """Returns when messages pass between the nodes. Raises TimeoutError."""
        deadline_s = time.monotonic() + START_WITHIN_S
        while not passes(self.brokers):
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"the cluster passes no messages within {START_WITHIN_S:g} s: {self.output()}")
            time.sleep(1)

    def pids(self) -> list[int]:
        """Erlang's process of each node."""
        commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in _descendants(self._process.pid)}
        return [pid for pid, command in commands.items() if command.split(b"\0")[0].endswith(b"beam.smp")]

    def output(self) -> str:
        """The end of what each node printed."""
        return "\n".join(path.read_text()[-1_500:] for path in sorted(self.folder.glob("*.out")))


def _descendants(pid: int) -> Iterator[int]:
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        yield int(child)
        yield from _descendants(int(child))


def _connected(port: int) -> paho.Client | None:
    client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
    try:
        client.connect("127.0.0.1", port)
    except OSError:
        return None
    client.loop_start()
    return client


def passes(brokers: Sequence[RunningBroker]) -> bool:
    """Whether each node of the cluster brings what is published at the last one."""
    clients = [_connected(broker.port) for broker in brokers]
    arrived: set[int] = set()
    try:
        for number, client in enumerate(clients):
            if client is None:
                return False
            client.on_message = lambda *_, number=number: arrived.add(number)
            client.subscribe("test/+/topic", qos=1)
        deadline_s = time.monotonic() + 5
        while len(arrived) < len(clients) and time.monotonic() < deadline_s:
            last = clients[-1]
            assert last is not None
            last.publish("test/a/topic", b"x", qos=1)
            time.sleep(0.5)
    finally:
        for client in clients:
            if client is not None:
                client.disconnect()
                client.loop_stop()
    return len(arrived) == len(clients)
