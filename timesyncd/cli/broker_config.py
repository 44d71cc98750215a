"""Write the files with which Mosquitto serves a fleet: settings, ACL and passwords."""

from __future__ import annotations

import os
import re
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable
from pathlib import Path

from timesyncd.client.files import read_file, replacing
from timesyncd.errors import ConfigError

EXAMPLES = (
    "timesyncd broker-config node-1 node-2 --hub hub-1 --out broker",
    "timesyncd broker-config --nodes-file nodes.txt --hub hub-1 --hub hub-2 --certificates --out broker",
)


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("nodes", nargs="*", metavar="NODE", help="the [node] names of the daemons")
    parser.add_argument("--nodes-file", type=Path, metavar="FILE", help="more of them, one a line")
    parser.add_argument(
        "--hub", action="append", default=[], metavar="NODE", help="a daemon with [hub]; may be repeated"
    )
    parser.add_argument(
        "--reader", action="append", default=[], metavar="USER", help="a user that only reads; may be repeated"
    )
    parser.add_argument("--certificates", action="store_true", help="users show certificates instead of passwords")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FOLDER", help="the folder, made where it is missing"
    )
    parser.add_argument(
        "--broker-folder", default="/etc/mosquitto/timesyncd", metavar="FOLDER",
        help="where the broker reads the files (default: %(default)s)",
    )  # fmt: skip


def run(args: Namespace) -> int:
    """0. Raises ConfigError for a name that no node may have, and where nothing can be written."""
    from timesyncd.mqtt.broker_files import BrokerUsers, acl, settings

    fleet = BrokerUsers(nodes=_names(args), hubs=args.hub, readers=args.reader)
    _check_names(fleet.users)
    try:
        args.out.mkdir(parents=True, exist_ok=True)
        _write(args.out / "timesyncd.conf", settings(args.broker_folder, has_certificates=args.certificates))
        _write(args.out / "timesyncd.acl", acl(fleet))
        new = 0 if args.certificates else _write_passwords(args.out, fleet.users)
    except OSError as error:
        raise ConfigError(f"{error.filename or args.out}: {error.strerror}") from error
    _report(args, len(fleet.users), new)
    return 0


_PIPE_S = 5.0


def _names(args: Namespace) -> list[str]:
    names = list(args.nodes)
    if args.nodes_file is not None:
        try:
            lines = read_file(args.nodes_file, pipe_s=_PIPE_S).decode().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "not text in UTF-8"
            raise ConfigError(f"--nodes-file {args.nodes_file}: cannot be read: {why}") from error
        names += [name for line in lines if (name := line.partition("#")[0].strip())]
    if not names and not args.hub:
        raise ConfigError("name the nodes, or give --nodes-file or --hub")
    return names


def _check_names(users: Iterable[str]) -> None:
    from timesyncd.config import NAME_PATTERN

    seen = set()
    for user in users:
        if not re.fullmatch(NAME_PATTERN, user):
            raise ConfigError(
                f"{user[:80]!r} is not a valid name: use up to 64 letters, digits, dots, dashes and underscores, the first a letter or digit"
            )
        if user in seen:
            raise ConfigError(f"{user!r} would be two users: give each node and reader a name of its own")
        seen.add(user)


def _write_passwords(folder: Path, users: Iterable[str]) -> int:
    """The broker's file, and a secret of each user. A secret that is there is kept. Returns the number of new ones."""
    from timesyncd.mqtt.broker_files import new_password, password_line

    secrets, new, lines = folder / "secrets", 0, []
    secrets.mkdir(mode=0o700, exist_ok=True)
    for user in users:
        path = secrets / user
        if not path.exists():
            _write(path, f"{new_password()}\n")
            new += 1
        lines.append(password_line(user, _secret(path)))
    _write(folder / "passwords", "\n".join([*lines, ""]))
    return new


def _secret(path: Path) -> str:
    """Raises ConfigError."""
    try:
        return read_file(path).decode().rstrip("\n")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not text in UTF-8"
        raise ConfigError(f"{path}: the secret cannot be read: {why}; remove it for a new one") from error


def _write(path: Path, text: str) -> None:
    """For the owner alone, and never half a file."""
    with replacing(path) as part, os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)


def _report(args: Namespace, users: int, new: int) -> None:
    from timesyncd.mqtt.broker_files import READER_SUFFIX

    into = args.broker_folder
    kind = "certificates" if args.certificates else f"passwords, {new} of them new"
    print(f"{args.out}: {users} users with {kind}")
    files = "timesyncd.conf timesyncd.acl" + ("" if args.certificates else " passwords")
    print(
        f"on the broker:  copy {files} to {into}, with broker.pem and broker.key{', ca.pem' if args.certificates else ''}"
    )
    print(
        f"                chown -R mosquitto: {into}; echo include_dir {into} >> /etc/mosquitto/mosquitto.conf; restart mosquitto"
    )
    if args.certificates:
        print("on each node:   [mqtt] tls = true, ca, and certificate and key whose common name is the node's name")
    else:
        print(
            "on each node:   copy secrets/NODE to /etc/timesyncd/mqtt.password; [mqtt] username = NODE, password = { file = ... }"
        )
    print(
        f"for people:     the user NODE{READER_SUFFIX} reads all and writes nothing; a second connection of one user ends the first"
    )
