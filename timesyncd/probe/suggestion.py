"""
The `[[grandmaster]]` to paste: what a probe found out, and no secret, only where each is. Pure.

Text and keys as TOML writes them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import tomli_w

from timesyncd.config import SecretSettings
from timesyncd.drivers.timeprovider._profiles import DEFAULT
from timesyncd.probe.access import SnmpAccess
from timesyncd.probe.probe import Probe
from timesyncd.sample import GrandmasterSample
from timesyncd.snmp import User


def quoted(text: str) -> str:
    """A TOML string of one line."""
    return tomli_w.dumps({"a": text}).removeprefix("a = ").removesuffix("\n")


def key(name: str) -> str:
    """A key, quoted where TOML wants it."""
    return tomli_w.dumps({name: 0}).removesuffix(" = 0\n")


def array(texts: Sequence[str]) -> str:
    """A TOML array of strings on one line."""
    return f"[{', '.join(map(quoted, texts))}]"


def inline(table: Mapping[str, str]) -> str:
    """A TOML table of strings on one line."""
    return f"{{ {', '.join(f'{key(name)} = {quoted(text)}' for name, text in table.items())} }}"


#: A name is taken from the grandmaster where it gives one that a configuration takes.
FALLBACK_NAME = "gm-a"


def suggestion(probe: Probe, own_profiles: Sequence[str] = ()) -> str:
    """`own_profiles`: names or paths that were given beside the shipped ones, as they were given."""
    access, sample = probe.access, probe.snmp.sample if probe.snmp is not None else None
    name = grandmaster_name(sample)
    lines = ["[[grandmaster]]", f"name = {quoted(name)}", 'driver = "timeprovider"', _identities(sample)]
    lines.append(f"host = {quoted(access.host)}")
    if access.snmp is not None:
        lines += [f"port = {access.port}"] if access.port != 161 else []
        lines += _snmp(access.snmp, name)
    if probe.snmp is not None:
        lines += _profiles(probe.snmp.sample, own_profiles)
    if access.snmp is not None and isinstance(access.snmp.credentials, User):
        lines += _user(access.snmp.credentials, access.snmp, name)
    if probe.web is not None and access.web is not None:
        lines += _https(probe, name)
    return "\n".join(lines) + "\n"


def grandmaster_name(sample: GrandmasterSample | None) -> str:
    name = "" if sample is None else re.sub(r"[^A-Za-z0-9._-]+", "-", sample.sys_name or "").strip("-._")[:64]
    return name or FALLBACK_NAME


def identities(sample: GrandmasterSample | None) -> list[str]:
    """A grandmaster may show one clock identity a port."""
    if sample is None:
        return []
    ports = [port.clock_identity for port in sample.ports or ()]
    return sorted({each for each in [sample.clock_identity, *ports] if each})


def _identities(sample: GrandmasterSample | None) -> str:
    found = identities(sample)
    if not found:
        return "identities = []    # not served: copy what nodes report as their grandmaster identity"
    if len(found) == 1:
        return f"identities = {array(found)}"
    return "\n".join(["identities = [", *(f"    {quoted(each)}," for each in found), "]"])


def _snmp(snmp: SnmpAccess, name: str) -> list[str]:
    if isinstance(snmp.credentials, User):
        return []
    return [f"community = {place(snmp.secrets.get('community'), f'{name}.community')}"]


def _user(user: User, snmp: SnmpAccess, name: str) -> list[str]:
    return [
        "",
        "[grandmaster.user]",
        f"name = {quoted(user.name)}",
        f"auth = {quoted(user.auth)}",
        f"auth_pass = {place(snmp.secrets.get('auth_pass'), f'{name}.auth')}",
        f"priv = {quoted(user.priv)}",
        f"priv_pass = {place(snmp.secrets.get('priv_pass'), f'{name}.priv')}",
    ]


def _https(probe: Probe, name: str) -> list[str]:
    web = probe.access.web
    assert web is not None and probe.web is not None
    options = web.options
    lines = ["", "[grandmaster.https]"]
    lines += [f"port = {options.port}"] if options.port != 443 else []
    lines += [f"username = {quoted(options.username)}", f"password = {place(web.secret, f'{name}.web')}"]
    proof = f"fingerprint = {quoted(probe.web.fingerprint)}"
    return [*lines, f"ca = {quoted(str(options.ca))}" if options.ca is not None else proof]


def place(secret: SecretSettings | None, file: str) -> str:
    """Where it was; of one that was typed, where to put it."""
    if secret is None:
        return inline({"file": f"/etc/timesyncd/{file}"}) + "    # put it there"
    return inline({"env": secret.env} if secret.env is not None else {"file": str(secret.file)})


def _profiles(sample: GrandmasterSample, own: Sequence[str]) -> list[str]:
    """All stay configured, since those without an answer still define what traps and syslog lines mean."""
    lines = [f"# answered: {', '.join(sample.profiles)}"]
    return lines + ([f"profiles = {array([*own, *DEFAULT])}"] if own else [])
