"""
Options of the commands that query a grandmaster: its address and the sources of secrets, none of which is an argument.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from timesyncd.cli._common import is_host

if TYPE_CHECKING:
    from timesyncd.probe.access import ProbeAccess, SnmpAccess, WebAccess

AUTH = ("sha1", "sha224", "sha256", "sha384", "sha512")
PRIV = ("aes128", "aes192", "aes256", "aes192-c", "aes256-c")


def add_access_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("host", type=_host, metavar="HOST", help="address or name of the grandmaster")
    parser.add_argument(
        "--timeout", type=_timeout, default=2.0, metavar="S", help="timeout of one reply (default: %(default)s s)"
    )
    snmp = parser.add_argument_group("SNMP", "a community (v2c) or a user (v3, authPriv)")
    snmp.add_argument("--port", type=_port, default=161, metavar="N", help="UDP port (default: %(default)s)")
    _add_secret(snmp, "--community", "community")
    snmp.add_argument("--user", metavar="NAME", help="SNMP v3 user")
    snmp.add_argument("--auth", choices=AUTH, default="sha256", help="authentication protocol (default: %(default)s)")
    _add_secret(snmp, "--auth-pass", "authentication pass phrase")
    snmp.add_argument("--priv", choices=PRIV, default="aes128", help="privacy protocol (default: %(default)s)")
    _add_secret(snmp, "--priv-pass", "privacy pass phrase")
    web = parser.add_argument_group(
        "HTTPS", "the certificate is always read; a login needs --fingerprint, --ca or --insecure"
    )
    web.add_argument("--https-port", type=_port, default=443, metavar="N", help="TCP port (default: %(default)s)")
    web.add_argument(
        "--https-username", metavar="NAME", help="a read-only account; without any SNMP option, only HTTPS is queried"
    )
    _add_secret(web, "--https-password", "password")
    web.add_argument("--fingerprint", metavar="HEX", help="SHA-256 fingerprint of the grandmaster's certificate")
    web.add_argument("--ca", type=Path, metavar="FILE", help="certificates of the authorities that signed it")
    web.add_argument("--insecure", action="store_true", help="accept any certificate, and send the password")


def _add_secret(group: object, option: str, what: str) -> None:
    either = group.add_mutually_exclusive_group()  # type: ignore[attr-defined]
    either.add_argument(f"{option}-env", metavar="VAR", help=f"environment variable with the {what}")
    either.add_argument(f"{option}-file", type=Path, metavar="FILE", help=f"file with the {what} (default: prompt)")


def access_of(args: Namespace) -> ProbeAccess:
    """The access with its secrets, which are prompted for if no option names them. Raises ConfigError."""
    from timesyncd.probe.access import ProbeAccess

    return ProbeAccess(args.host, args.port, args.https_port, args.timeout, _snmp(args), _web(args))


def _snmp(args: Namespace) -> SnmpAccess | None:
    from timesyncd.errors import ConfigError
    from timesyncd.probe.access import SnmpAccess, given_secret, pass_phrase, revealed
    from timesyncd.snmp import Community, User

    community = given_secret(args.community_env, args.community_file)
    if args.user is None:
        if community is None and args.https_username is not None:
            return None
        name = revealed(community, f"community of {args.host}", "--community-env or --community-file")
        return SnmpAccess(Community(name), {} if community is None else {"community": community})
    if community is not None:
        raise ConfigError("--user (SNMP v3) and a community (v2c) exclude each other: give one of them")
    secrets = {
        "auth_pass": given_secret(args.auth_pass_env, args.auth_pass_file),
        "priv_pass": given_secret(args.priv_pass_env, args.priv_pass_file),
    }
    auth = pass_phrase(secrets["auth_pass"], f"authentication pass phrase of {args.user}", "--auth-pass-env or -file")
    priv = pass_phrase(secrets["priv_pass"], f"privacy pass phrase of {args.user}", "--priv-pass-env or -file")
    given = {key: secret for key, secret in secrets.items() if secret is not None}
    return SnmpAccess(User(args.user, args.auth, auth, args.priv, priv), given)


def _web(args: Namespace) -> WebAccess | None:
    from pydantic import SecretStr

    from timesyncd.probe.access import WebAccess, given_secret, revealed, web_options

    if args.https_username is None:
        return None
    proof = {"fingerprint": args.fingerprint, "ca": args.ca, "insecure": args.insecure}
    options = web_options({"username": args.https_username, "port": args.https_port, **proof})
    for warning in options.warnings:
        progress(f"warning: {warning}")
    secret = given_secret(args.https_password_env, args.https_password_file)
    options_named = "--https-password-env or --https-password-file"
    password = revealed(secret, f"password of {args.https_username} at {args.host}", options_named)
    return WebAccess(options, SecretStr(password), secret)


def progress(line: str) -> None:
    """Prints a line of progress to stderr."""
    print(line, file=sys.stderr, flush=True)


def _host(text: str) -> str:
    try:
        valid = is_host(text)
    except UnicodeError:
        valid = False
    if not valid:
        raise ArgumentTypeError(f"{text!r} is no address or name of a host")
    return text


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65_535:
        raise ArgumentTypeError(f"{text!r} is not a port from 1 to 65535")
    return int(text)


def _timeout(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 60:
        raise ArgumentTypeError(f"{text!r} is not from 0.1 to 60 seconds")
    return seconds
