"""What grandmasters report by themselves reaches the right driver, and an unknown sender's datagram does no harm."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from snmp_scripted import pdu

from timesyncd.clocks import SystemClocks
from timesyncd.config import Config, SecretSettings, SyslogSettings, TrapSettings
from timesyncd.daemon.trap_receiver import Rejection, TrapReceiver
from timesyncd.driver import AlarmSource
from timesyncd.errors import ConfigError
from timesyncd.sample import AlarmEvent, EngineTime, Trap
from timesyncd.snmp import Oid, User, ber, security
from timesyncd.snmp.listener import BURST
from timesyncd.snmp.messages import PduType
from timesyncd.snmp.security import MasterKeys

HERE = "127.0.0.1"


@dataclass
class RecordingAlarmSource:
    """A driver's ears: it takes a line of digits as an alarm id, and no other."""

    name: str
    addresses: frozenset[str] = frozenset({HERE})
    config_findings: tuple[tuple[str, str], ...] = ()
    engine: EngineTime | None = None

    def verified_engine(self) -> EngineTime | None:
        return self.engine

    def alarm_event(self, trap: Trap) -> AlarmEvent | None:
        return self.alarm_event_of_line(str(trap.oid[-1]), trap.boottime_ns)

    def alarm_event_of_line(self, line: str, boottime_ns: int) -> AlarmEvent | None:
        return AlarmEvent(self.name, boottime_ns, "raise", int(line), 0, "minor", "") if line.isdigit() else None

    def request_poll(self) -> None: ...


@dataclass
class ReceiverLab:
    """A receiver with a syslog socket on a free port, and all that came of it."""

    events: list[AlarmEvent] = field(default_factory=list)
    poll_requests: list[str] = field(default_factory=list)

    @asynccontextmanager
    async def listening(self, *sources: RecordingAlarmSource) -> AsyncIterator[tuple[TrapReceiver, socket.socket]]:
        with socket.socket(type=socket.SOCK_DGRAM) as listening, socket.socket(type=socket.SOCK_DGRAM) as sender:
            listening.bind((HERE, 0))
            sender.connect(listening.getsockname())
            alarm_sources: dict[str, AlarmSource] = {source.name: source for source in sources}
            receiver = receiver_of(Config(syslog=SyslogSettings()), self, alarm_sources)
            await receiver.open({"syslog": listening}.get)
            yield receiver, sender
            await receiver.close()


def receiver_of(
    config: Config, lab: ReceiverLab, alarm_sources: Mapping[str, AlarmSource] | None = None
) -> TrapReceiver:
    return TrapReceiver(config, alarm_sources or {}, SystemClocks(), 1, lab.events.append, lab.poll_requests.append)


async def until_taken(receiver: TrapReceiver, lab: ReceiverLab, count: int) -> None:
    async with asyncio.timeout(60):
        while len(lab.events) + receiver.rejected.total() < count:
            await asyncio.sleep(0.01)


async def test_a_line_reaches_its_grandmaster_and_requests_a_poll() -> None:
    """The sender's address selects the grandmaster; its event is delivered, and the grandmaster is polled soon."""
    lab = ReceiverLab()
    async with lab.listening(RecordingAlarmSource("gm-a"), RecordingAlarmSource("gm-b", frozenset({"192.0.2.1"}))) as (
        receiver,
        sender,
    ):
        sender.send(b"97")
        await until_taken(receiver, lab, 1)

    assert [(event.source, event.id) for event in lab.events] == [("gm-a", 97)]
    assert lab.poll_requests == ["gm-a"]


async def test_unknown_and_ambiguous_senders_are_counted() -> None:
    """Nothing is guessed: the sender of a message must be certain, and each of two grandmasters that may have sent it is polled."""
    lab = ReceiverLab()
    async with lab.listening(RecordingAlarmSource("gm-a", frozenset({"192.0.2.1"}))) as (receiver, sender):
        sender.send(b"97")
        await until_taken(receiver, lab, 1)
    unknown = receiver.rejected
    async with lab.listening(RecordingAlarmSource("gm-a"), RecordingAlarmSource("gm-b")) as (receiver, sender):
        sender.send(b"97")
        await until_taken(receiver, lab, 1)

    assert (unknown, receiver.rejected) == ({Rejection.UNKNOWN_SENDER: 1}, {Rejection.AMBIGUOUS_SENDER: 1})
    assert (lab.events, lab.poll_requests) == ([], ["gm-a", "gm-b"])


async def test_duplicates_are_counted() -> None:
    """A repetition, or another syslog message of a grandmaster, is no event."""
    lab = ReceiverLab()
    async with lab.listening(RecordingAlarmSource("gm-a")) as (receiver, sender):
        sender.send(b"\xff\xfe session opened for user")
        await until_taken(receiver, lab, 1)

    assert (lab.events, receiver.rejected) == ([], {Rejection.DUPLICATE: 1})


async def test_a_storm_is_dropped_reported_once_and_followed_by_a_poll() -> None:
    """Dropped datagrams are counted by grandmaster, and it is polled for its active alarms."""
    lab, too_many = ReceiverLab(), 3 * BURST
    async with lab.listening(RecordingAlarmSource("gm-a")) as (receiver, sender):
        for _ in range(too_many):
            sender.send(b"97")
        await until_taken(receiver, lab, BURST)
        lab.poll_requests.clear()
        await asyncio.sleep(0.2)
        first, second = receiver.dropped_in_storms(), receiver.dropped_in_storms()

    assert first["gm-a"] + len(lab.events) == too_many
    assert second == {}
    assert lab.poll_requests[-1] == "gm-a"


async def test_an_alarm_by_trap_and_by_syslog_is_published_once() -> None:
    """
    A grandmaster that sends both reports each alarm twice; the same alarm again on the same channel is a new event.
    """
    lab = ReceiverLab()
    async with lab.listening(RecordingAlarmSource("gm-a")) as (receiver, sender):
        receiver._receive_trap(Trap(HERE, receiver._clocks.boottime_ns(), (1, 3, 97), None, ()))
        sender.send(b"97")
        await until_taken(receiver, lab, 2)
        receiver._receive_trap(Trap(HERE, receiver._clocks.boottime_ns(), (1, 3, 97), None, ()))

    assert len(lab.events) == 2
    assert receiver.rejected == {Rejection.DUPLICATE: 1}


ENGINE_ID = bytes.fromhex("80002342050102030405")
EVA = User("eva", "sha256", "a pass phrase", "aes128", "another phrase")
KEYS = MasterKeys(EVA).at(ENGINE_ID)
TRAP_OID: Oid = (1, 3, 6, 1, 6, 3, 1, 1, 4, 1, 0)


def signed_trap(boots: int, time_s: int, alarm_id: int) -> bytes:
    engine = security.SnmpEngine(ENGINE_ID, boots, time_s)
    values = [(TRAP_OID, ber.encode_oid((1, 3, 6, 1, 4, 1, alarm_id)))]
    scoped = security.scoped_pdu(ENGINE_ID, b"", pdu(PduType.TRAP, 5, values))
    return security.seal(9, False, engine, b"eva", KEYS, scoped)


async def test_the_poller_corrects_the_clock_of_a_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A grandmaster that was reset restarts its count of boots, so its traps look like recorded ones. The first one requests a poll; the signed
    report that the poller gets then shows which they are, and one that is recorded stays refused.
    """
    monkeypatch.setenv("AUTH", EVA.auth_pass)
    monkeypatch.setenv("PRIV", EVA.priv_pass)
    user = {
        "name": "eva",
        "auth": "sha256",
        "auth_pass": {"env": "AUTH"},
        "priv": "aes128",
        "priv_pass": {"env": "PRIV"},
    }
    lab, source = ReceiverLab(), RecordingAlarmSource("gm-a")
    receiver = receiver_of(Config(traps=TrapSettings.model_validate({"users": [user]})), lab, {"gm-a": source})
    with socket.socket(type=socket.SOCK_DGRAM) as sender, socket.socket(type=socket.SOCK_DGRAM) as listening:
        listening.bind((HERE, 0))
        sender.connect(listening.getsockname())
        await receiver.open({"traps": listening}.get)

        async def polls_after(trap: bytes, taken: int) -> int:
            sender.send(trap)
            async with asyncio.timeout(60):
                while len(lab.events) + receiver.all_rejected.total() < taken:
                    await asyncio.sleep(0.01)
            return len(lab.poll_requests)

        polls = [await polls_after(signed_trap(9, 500, 1), 1), await polls_after(signed_trap(1, 990, 2), 2)]
        source.engine = EngineTime(ENGINE_ID, 1, 1_000)
        polls += [await polls_after(signed_trap(1, 1_001, 3), 3), await polls_after(signed_trap(1, 20, 4), 4)]
        await receiver.close()

    assert [event.id for event in lab.events] == [1, 3]
    assert polls == [1, 2, 3, 4]


async def test_a_rejection_is_reported_once() -> None:
    """An operator who expects a trap finds the reason in the log, once."""
    lab = ReceiverLab()
    async with lab.listening() as (receiver, sender):
        sender.send(b"97")
        await until_taken(receiver, lab, 1)

    assert (receiver.new_rejections(), receiver.new_rejections()) == ([Rejection.UNKNOWN_SENDER], [])
    assert receiver.all_rejected == {Rejection.UNKNOWN_SENDER: 1}


async def test_a_port_that_is_taken_is_one_line() -> None:
    """It names the section, the address and what helps."""
    with socket.socket(type=socket.SOCK_DGRAM) as taken:
        taken.bind((HERE, 0))
        port = taken.getsockname()[1]
        configs = [
            Config(syslog=SyslogSettings(host=HERE, port=port)),
            Config(traps=TrapSettings(host=HERE, port=port)),
        ]
        receivers = [receiver_of(config, ReceiverLab()) for config in configs]
        for section, receiver in zip(("syslog", "traps"), receivers, strict=True):
            with pytest.raises(ConfigError, match=f"^{section}: .*{port}.*in use.*socket that systemd passes"):
                await receiver.open(lambda _: None)


def test_a_missing_secret_fails_before_anything_listens() -> None:
    """It names the key."""
    config = Config(traps=TrapSettings(communities=[SecretSettings(env="TIMESYNCD_NOT_SET")]))

    with pytest.raises(ConfigError, match=r"^traps\.communities\[0\]: .*TIMESYNCD_NOT_SET"):
        receiver_of(config, ReceiverLab())


def test_sockets_of_the_service_manager_are_found_by_name() -> None:
    """
    As systemd passes them: numbers from 3 on, names in LISTEN_FDNAMES, and only for the process that LISTEN_PID names.
    """
    ask = (
        "from timesyncd.daemon.daemon import passed_socket as p; s = p('syslog'); print(s.getsockname()[1], p('other'))"
    )
    with socket.socket(type=socket.SOCK_DGRAM) as ours:
        ours.bind((HERE, 0))
        port = ours.getsockname()[1]
        script = f'exec 3<&{ours.fileno()} 4<&{ours.fileno()}; export LISTEN_PID=$$; exec {sys.executable} -c "{ask}"'
        environment = os.environ | {"LISTEN_FDS": "2", "LISTEN_FDNAMES": "traps:syslog"}
        published = subprocess.run(
            ["bash", "-c", script],
            check=False,
            env=environment,
            pass_fds=[ours.fileno()],
            capture_output=True,
            text=True,
        )

    assert (published.stdout.split(), published.stderr) == ([str(port), "None"], "")
