"""
The files with which Mosquitto serves a fleet: its settings, its ACL and its passwords. Pure, but for the random passwords.

Each user has one connection: with `use_username_as_clientid` the broker names a connection by its user, so that no client
can end another's by showing that one's client identifier.
"""

from __future__ import annotations

import base64
import hashlib
import os
import secrets
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from timesyncd.config import TOPIC_PREFIX
from timesyncd.mqtt.topics import HUB_SHARE, HUB_STATE, NODE_SUBSCRIPTIONS, STATE_REQUEST, MqttChannel

#: Of Mosquitto 2.0's own mosquitto_passwd.
_ITERATIONS = 101
_SALT_BYTES = 12

#: Who may read everything and write nothing beside the node of that name: commands and people on that node.
READER_SUFFIX = "-cli"


@dataclass(frozen=True)
class BrokerUsers:
    """Who connects to the broker. A hub is a node too: it publishes its own clock's state, and may poll grandmasters."""

    nodes: Collection[str]
    hubs: Collection[str]
    readers: Collection[str] = ()

    @property
    def users(self) -> list[str]:
        """Each with one connection, in order: every node, its reader, and the other readers."""
        nodes = dict.fromkeys((*self.hubs, *self.nodes))
        return [*nodes, *(f"{node}{READER_SUFFIX}" for node in nodes), *self.readers]


def acl(fleet: BrokerUsers, prefix: str = TOPIC_PREFIX) -> str:
    """Who may write what. No `pattern` lines: Mosquitto applies them to every user, readers included."""
    lines = ["# Written by `timesyncd broker-config`."]
    nodes = dict.fromkeys((*fleet.hubs, *fleet.nodes))
    for node in nodes:
        topics = [f"write {prefix}/node/{node}/#"]
        if node in fleet.hubs:
            topics += [f"read {prefix}/#", *(f"write {topic}" for topic in _hub_topics(node, prefix))]
        else:
            topics += [f"read {channel.pattern(prefix, node)}" for channel in NODE_SUBSCRIPTIONS]
        lines += _section(node, topics)
    for reader in fleet.users[len(nodes) :]:
        lines += _section(reader, [f"read {prefix}/#"])
    return "\n".join([*lines, ""])


def _hub_topics(hub: str, prefix: str) -> Iterable[str]:
    """What a hub writes beside its own node's topics; a grandmaster's state where it polls one."""
    yield HUB_STATE.topic(prefix, hub)
    yield HUB_SHARE.topic(prefix, hub)
    yield STATE_REQUEST.topic(prefix, hub)
    own = (HUB_STATE, STATE_REQUEST)
    written: tuple[MqttChannel, ...] = tuple(each for each in NODE_SUBSCRIPTIONS if each not in own)
    yield from (channel.topic(prefix, "+") for channel in written)


def _section(user: str, topics: Iterable[str]) -> list[str]:
    return ["", f"user {user}", *(f"topic {each}" for each in topics)]


def settings(folder: str, *, has_certificates: bool, port: int = 8883) -> str:
    """mosquitto.conf. `has_certificates`: clients show one, whose common name is the user; else a password."""
    by_certificate = [
        "# Who signs the clients' certificates; a certificate's common name is the user.",
        f"cafile {folder}/ca.pem",
        "require_certificate true",
        "use_identity_as_username true",
    ]
    lines = [
        "# Written by `timesyncd broker-config`.",
        f"listener {port}",
        f"certfile {folder}/broker.pem",
        f"keyfile {folder}/broker.key",
        *(by_certificate if has_certificates else [f"password_file {folder}/passwords"]),
        "# One connection for each user, called as the user is: no client ends another's.",
        "use_username_as_clientid true",
        "allow_anonymous false",
        f"acl_file {folder}/timesyncd.acl",
        "# At the default of 1,000 a hub loses retained states unseen.",
        "max_queued_messages 1000000",
    ]
    return "\n".join([*lines, ""])


def new_password() -> str:
    return secrets.token_urlsafe(24)


def password_line(user: str, password: str, salt: bytes | None = None) -> str:
    """A line of a password file, as mosquitto_passwd of Mosquitto 2 writes it: PBKDF2 with SHA-512."""
    salt = os.urandom(_SALT_BYTES) if salt is None else salt
    digest = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, _ITERATIONS)
    return f"{user}:$7${_ITERATIONS}${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}"
