"""
The link to a real Mosquitto over TLS: trusted certificates, accepted clients, and the topics that the ACL allows each.
"""

from __future__ import annotations

import asyncio
import getpass
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiomqtt
import pytest
from authority import Authority
from mqtt_links import eventually, running
from wire import grandmaster, history, hub_state, node_state, stored

from timesyncd.__main__ import main
from timesyncd.config import TOPIC_PREFIX, MqttSettings, SecretSettings
from timesyncd.messages.node import Message
from timesyncd.mqtt import broker_files
from timesyncd.mqtt.broker_files import BrokerUsers
from timesyncd.mqtt.client import MqttLink
from timesyncd.mqtt.inbox import ReceivedMessage
from timesyncd.mqtt.tls import tls_context
from timesyncd.mqtt.topics import (
    GRANDMASTER_STATE,
    HUB_STATE,
    HUB_SUBSCRIPTIONS,
    JOB_STATE,
    NODE_STATE,
    NODE_SUBSCRIPTIONS,
    STORED,
    MqttChannel,
)
from timesyncd.simulation.bed import host
from timesyncd.simulation.bed.broker import CertificateFiles, Mosquitto, free_port

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIMESYNCD_TEST_PASSWORD", "x")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def server(authority: Authority) -> CertificateFiles:
    return authority.identity("broker", host=Mosquitto.host)


def link(
    broker: Mosquitto,
    node: str = "n1",
    wanted: tuple[MqttChannel, ...] = (),
    on_message: Callable[[ReceivedMessage], None] = lambda _: None,
    **more: object,
) -> MqttLink:
    settings = MqttSettings.model_validate({"host": broker.host, "port": broker.port, "tls": True} | more)
    return MqttLink(settings, node, 1, wanted, on_message)


def shown(identity: CertificateFiles) -> dict[str, Any]:
    return {"certificate": identity.certificate, "key": identity.key}


async def reason_of_refusal(refused: MqttLink, caplog: pytest.LogCaptureFixture) -> list[str]:
    """The link's log lines when it tries twice and never connects."""
    with caplog.at_level(logging.INFO, "timesyncd.mqtt"):
        async with running(refused):
            await eventually(lambda: refused._failures >= 2)
            was_connected = refused.connected

    assert not was_connected
    return [
        record.getMessage().partition("not connected: ")[2]
        for record in caplog.records
        if record.name == "timesyncd.mqtt.client"
    ]


async def test_a_broker_that_our_ca_signed_is_trusted(authority: Authority, server: CertificateFiles) -> None:
    """Messages go over TLS with the configured CA, and nothing else is needed."""
    received_by: list[ReceivedMessage] = []
    with Mosquitto(tls=server) as broker:
        hub = link(broker, "hub", (NODE_STATE,), received_by.append, ca=authority.ca)
        node = link(broker, ca=authority.ca)
        async with running(hub, node):
            node.publish(node_state())
            await eventually(lambda: received_by)

    assert [received.message for received in received_by] == [node_state()]


async def test_a_broker_of_another_ca_is_refused(
    tmp_path: Path, server: CertificateFiles, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither by a CA of the same name nor by those that the system trusts; the log states why, once."""
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other")
    with Mosquitto(tls=server) as broker:
        wrong_ca = await reason_of_refusal(link(broker, ca=other.ca), caplog)
        caplog.clear()
        systems_ca = await reason_of_refusal(link(broker), caplog)

    assert wrong_ca == ["the broker's certificate is not trusted: unable to get local issuer certificate"]
    assert systems_ca == ["the broker's certificate is not trusted: unable to get local issuer certificate"]


async def test_an_expired_certificate_is_refused(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    """The right CA does not make up for the day."""
    expired = authority.identity("broker", host=Mosquitto.host, is_expired=True)
    with Mosquitto(tls=expired) as broker:
        logged = await reason_of_refusal(link(broker, ca=authority.ca), caplog)

    assert logged == ["the broker's certificate is not trusted: certificate has expired"]


async def test_a_certificate_of_another_host_is_refused(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    """A certificate that the right CA gave somebody else opens nothing."""
    elsewhere = authority.identity("broker", host="broker.example")
    with Mosquitto(tls=elsewhere) as broker:
        logged = await reason_of_refusal(link(broker, ca=authority.ca), caplog)

    assert logged == [
        "the broker's certificate is not trusted: IP address mismatch, certificate is not valid for '127.0.0.1'."
    ]


async def test_a_permanent_error_is_logged_although_the_broker_was_down(
    tmp_path: Path, authority: Authority, server: CertificateFiles, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker that is down hides no permanent error: the log names it when it appears, and the return too."""
    (tmp_path / "other").mkdir()
    ca = tmp_path / "trusted.pem"
    ca.write_bytes(Authority(tmp_path / "other").ca.read_bytes())
    with Mosquitto(tls=server) as broker, caplog.at_level(logging.INFO, "timesyncd.mqtt"):
        broker.stop()
        node = link(broker, ca=ca)
        async with running(node):
            await eventually(lambda: caplog.records)
            broker.start()
            await eventually(lambda: len(caplog.records) == 2)
            ca.write_bytes(authority.ca.read_bytes())
            await eventually(lambda: node.connected)

    assert "refused" in caplog.records[0].getMessage()
    assert "not trusted" in caplog.records[1].getMessage()
    assert caplog.records[2].getMessage().endswith(": connected again")
    assert len(caplog.records) == 3


async def test_a_client_certificate_is_accepted(
    authority: Authority, server: CertificateFiles, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the broker asks for a certificate, a node without one stays outside, and the log states why."""
    with Mosquitto(tls=server, client_ca=authority.ca) as broker:
        node = link(broker, ca=authority.ca, **shown(authority.identity("n1")))
        async with running(node):
            await eventually(lambda: node.connected)
        logged = await reason_of_refusal(link(broker, ca=authority.ca), caplog)

    assert logged == ["the broker rejects our certificate: tlsv13 alert certificate required"]


async def test_a_client_certificate_of_another_ca_is_rejected(
    tmp_path: Path, authority: Authority, server: CertificateFiles, caplog: pytest.LogCaptureFixture
) -> None:
    """A certificate that somebody signed for himself is none."""
    (tmp_path / "other").mkdir()
    forged = Authority(tmp_path / "other").identity("n1")
    with Mosquitto(tls=server, client_ca=authority.ca) as broker:
        logged = await reason_of_refusal(link(broker, ca=authority.ca, **shown(forged)), caplog)

    assert logged == ["the broker rejects our certificate: tlsv1 alert unknown ca"]


async def test_a_changed_password_is_used_at_the_next_connection(
    tmp_path: Path, authority: Authority, server: CertificateFiles
) -> None:
    """User and password go over TLS; a password changed at both ends needs no restart of the daemon."""
    secret = tmp_path / "password"
    secret.write_text("first\n")
    with Mosquitto(users={"n1": "first"}, tls=server) as broker:
        node = link(broker, ca=authority.ca, username="n1", password=SecretSettings(file=secret))
        async with running(node):
            await eventually(lambda: node.connected)
            broker.stop()
            broker.users = {"n1": "second"}
            secret.write_text("second\n")
            await eventually(lambda: not node.connected)
            broker.start()
            await eventually(lambda: node.connected)


async def test_a_ca_that_vanishes_is_waited_for(
    authority: Authority, server: CertificateFiles, caplog: pytest.LogCaptureFixture
) -> None:
    """A file that cannot be read keeps the link down, is named by its key in the log, and costs the daemon nothing else."""
    moved = authority.ca.rename(authority.ca.with_suffix(".moved"))
    with Mosquitto(tls=server) as broker, caplog.at_level(logging.INFO, "timesyncd.mqtt"):
        node = link(broker, ca=authority.ca)
        async with running(node):
            await eventually(lambda: caplog.records)
            moved.rename(authority.ca)
            await eventually(lambda: node.connected)

    assert f"not connected: mqtt.ca = '{authority.ca}': cannot be read: No such file" in caplog.text


FLEET = BrokerUsers(nodes=["n1", "n2"], hubs=["hub-a"], readers=["grafana"])
ACL = broker_files.acl(FLEET)


def noting(messages: list[Message]) -> Callable[[ReceivedMessage], None]:
    def note(received: ReceivedMessage) -> None:
        assert isinstance(received.message, Message)
        messages.append(received.message)

    return note


async def put(broker: Mosquitto, user: str, topic: str) -> None:
    """By hand, as this user; returns when the broker has handled it."""
    async with aiomqtt.Client(
        broker.host, broker.port, username=user, password="x", protocol=aiomqtt.ProtocolVersion.V5
    ) as client:
        await client.publish(topic, b"forged", qos=1)


async def test_the_acl_lets_each_do_its_part() -> None:
    """Nodes publish to hubs, hubs publish to nodes, and the reader receives all."""
    received_by: dict[str, list[Message]] = {"hub-a": [], "n1": [], "n2": []}
    with Mosquitto(users=dict.fromkeys(FLEET.users, "x"), acl=ACL) as broker:
        links = {
            user: link(
                broker, user, HUB_SUBSCRIPTIONS if user == "hub-a" else NODE_SUBSCRIPTIONS, noting(received_by[user]),
                tls=False, username=user, password=SecretSettings(env="TIMESYNCD_TEST_PASSWORD"),
            )
            for user in received_by
        }  # fmt: skip
        reading = aiomqtt.Client(broker.host, broker.port, username="grafana", password="x")
        async with running(*links.values()), reading as reader:
            await reader.subscribe(f"{TOPIC_PREFIX}/node/+/state")
            await eventually(lambda: all(each.connected for each in links.values()))
            logged = [stored(of="n1", node="hub-a"), hub_state("hub-a"), grandmaster("hub-a", 1, 1)]
            for message in logged:
                links["hub-a"].publish(message)
            links["n1"].publish(node_state())
            await eventually(lambda: len(received_by["n1"]) == 3 and node_state() in received_by["hub-a"])
            shown_to_reader = await anext(reader.messages)

    assert sorted(received_by["n1"], key=str) == sorted(logged, key=str)
    assert sorted(received_by["n2"], key=str) == sorted(logged[1:], key=str)
    assert shown_to_reader.payload == node_state().model_dump_json().encode()


@pytest.mark.parametrize(
    ("user", "channel", "subject"),
    [
        ("n1", NODE_STATE, "n2"),
        ("n1", STORED, "n2"),
        ("n1", HUB_STATE, "hub-a"),
        ("n1", HUB_STATE, "n1"),
        ("n1", JOB_STATE, "0123456789abcdef"),
        ("n1", GRANDMASTER_STATE, "gm-a"),
        ("hub-a", NODE_STATE, "n1"),
        ("hub-a", HUB_STATE, "hub-b"),
        ("grafana", NODE_STATE, "n1"),
        ("grafana", NODE_STATE, "grafana"),
        ("n1-cli", NODE_STATE, "n1"),
        ("n1-cli", NODE_STATE, "n1-cli"),
        ("grafana", JOB_STATE, "0123456789abcdef"),
    ],
)  # fmt: skip
async def test_the_acl_keeps_each_out_of_the_rest(user: str, channel: MqttChannel, subject: str) -> None:
    """A message on a topic that the ACL denies its user reaches no subscriber."""
    topic = channel.topic(TOPIC_PREFIX, subject)
    acl = f"{ACL}\nuser admin\ntopic readwrite #\n"
    with Mosquitto(users=dict.fromkeys((user, "admin"), "x"), acl=acl) as broker:
        async with aiomqtt.Client(broker.host, broker.port, username="admin", password="x") as admin:
            await admin.subscribe(topic)
            await put(broker, user, topic)
            await admin.publish(topic, b"end", qos=1)
            message = await anext(admin.messages)

    assert message.payload == b"end"


async def test_a_node_with_another_s_name_gets_an_error(caplog: pytest.LogCaptureFixture) -> None:
    """Mosquitto accepts it, and drops its messages: that must not look like a connection."""
    with Mosquitto(users={"n1": "x"}, acl=ACL) as broker:
        secret = SecretSettings(env="TIMESYNCD_TEST_PASSWORD")
        logged = await reason_of_refusal(link(broker, "n2", tls=False, username="n1", password=secret), caplog)

    assert logged == [f"the broker refuses {TOPIC_PREFIX}/node/n2/availability from this daemon: Not authorized"]


async def test_a_denied_topic_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """An ACL that forgets one topic costs what goes there, and nothing else."""
    forgetful = f"user n1\ntopic write {TOPIC_PREFIX}/node/n1/availability\n"
    with Mosquitto(users={"n1": "x"}, acl=forgetful) as broker, caplog.at_level(logging.INFO, "timesyncd.mqtt"):
        node = link(broker, tls=False, username="n1", password=SecretSettings(env="TIMESYNCD_TEST_PASSWORD"))
        node.publish(history(1))
        node.publish(history(2))
        async with running(node):
            await eventually(lambda: node.published == 2)
            was_connected = node.connected

    assert was_connected
    assert [record.getMessage() for record in caplog.records] == [
        f"mqtt: the broker refuses {TOPIC_PREFIX}/node/n1/history from this daemon: Not authorized"
    ]


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((Mosquitto.host, port)) == 0


@asynccontextmanager
async def generated_broker(folder: Path, authority: Authority, *more: str) -> AsyncIterator[int]:
    """Mosquitto on the files that the command writes; yields its port."""
    port = free_port()
    arguments = ["broker-config", *FLEET.nodes, "--hub", "hub-a", "--reader", "grafana", "--out", str(folder), *more]
    assert main([*arguments, "--broker-folder", str(folder)]) == 0
    server = authority.identity("broker", host=Mosquitto.host)
    for path, name in ((server.certificate, "broker.pem"), (server.key, "broker.key"), (authority.ca, "ca.pem")):
        (folder / name).write_bytes(path.read_bytes())
    config = folder / "mosquitto.conf"
    text = (folder / "timesyncd.conf").read_text().replace("listener 8883", f"listener {port} {Mosquitto.host}")
    config.write_text(f"{text}user {getpass.getuser()}\n")
    broker = await asyncio.create_subprocess_exec(*host.dying_with_parent([host.find("mosquitto"), "-c", str(config)]))
    try:
        await eventually(lambda: _listens(port))
        yield port
    finally:
        broker.kill()
        await broker.wait()


def client_of(port: int, authority: Authority, identifier: str, **more: Any) -> aiomqtt.Client:
    """A client that chooses its own identifier; `more` are a user and password, or a certificate and its key."""
    settings = MqttSettings(
        host=Mosquitto.host, port=port, tls=True, ca=authority.ca, certificate=more.pop("certificate", None),
        key=more.pop("key", None),
    )  # fmt: skip
    return aiomqtt.Client(
        Mosquitto.host, port, identifier=identifier, protocol=aiomqtt.ProtocolVersion.V5,
        tls_context=tls_context(settings), **more,
    )  # fmt: skip


async def test_a_certificate_s_name_is_user_and_identifier(tmp_path: Path, authority: Authority) -> None:
    """A node and its reader come in beside each other, and a third one does not take the node's place."""
    async with generated_broker(tmp_path / "broker", authority, "--certificates") as port:
        settings = MqttSettings(
            host=Mosquitto.host, port=port, tls=True, ca=authority.ca, **shown(authority.identity("n1"))
        )
        node = MqttLink(settings, "n1", 1, NODE_SUBSCRIPTIONS, lambda _: None)
        thief = client_of(port, authority, "timesyncd-n1", **shown(authority.identity("n2")))
        reading = client_of(port, authority, "timesyncd-n1", **shown(authority.identity("n1-cli")))
        async with running(node), reading as reader:
            await eventually(lambda: node.connected)
            await reader.subscribe(NODE_STATE.topic(TOPIC_PREFIX, "n1"))
            async with thief:
                node.publish(node_state())
                message = await anext(reader.messages)
            failures = node._failures

    assert message.payload == node_state().model_dump_json().encode()
    assert failures == 0


async def test_nobody_ends_another_s_connection_by_its_client_identifier(tmp_path: Path, authority: Authority) -> None:
    """A node that shows another's identifier is known by its own user: the other one stays connected."""
    folder = tmp_path / "broker"
    async with generated_broker(folder, authority) as port:

        def client(user: str, identifier: str) -> aiomqtt.Client:
            password = (folder / "secrets" / user).read_text().strip()
            return client_of(port, authority, identifier, username=user, password=password)

        async with client("grafana", "any") as reader, client("n2", "timesyncd-n2") as victim:
            await reader.subscribe(f"{TOPIC_PREFIX}/node/#")
            for _ in range(5):
                async with client("n1", "timesyncd-n2"), client("n1-cli", "timesyncd-n2"):
                    pass
            await victim.publish(NODE_STATE.topic(TOPIC_PREFIX, "n2"), b"still here", qos=1)
            message = await anext(reader.messages)

    assert message.payload == b"still here"
