"""What several commands share: the configuration, the daemon's page, the store, and the audit extra."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Collection
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from timesyncd.cli._log_output import print_error
from timesyncd.cli._parser import FileName
from timesyncd.client.preflight_check import DEFAULT_URL
from timesyncd.errors import ConfigError
from timesyncd.units import span_ns

if TYPE_CHECKING:
    from ssl import SSLContext

    from timesyncd.config import Config
    from timesyncd.store.engine import StoreLocation

T = TypeVar("T")

DEFAULT_CONFIG = "/etc/timesyncd/timesyncd.toml"


def add_config_argument(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        type=Path,
        default=Path(DEFAULT_CONFIG),
        metavar="FILE",
        help=f"configuration file (default: {DEFAULT_CONFIG})",
    )


def add_history_arguments(parser: ArgumentParser, since: str) -> None:
    """`--since` and `--until` as ages in nanoseconds, and `--store`. `since` is the default."""
    parser.add_argument(
        "--since",
        type=span_ns,
        default=since,
        metavar="SPAN",
        help="begin, as an age: 90s, 15m, 1h, 2d (default: %(default)s)",
    )
    parser.add_argument("--until", type=span_ns, default="0s", metavar="SPAN", help="end, as an age (default: now)")
    add_store_argument(parser)


def add_store_argument(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--store", type=FileName, metavar="PATH", help="file or URL of the store (default: from the configuration)"
    )
    add_config_argument(parser)


def knows_source(place: StoreLocation, known: Collection[str], name: str) -> bool:
    """False: the store has no such source, and a line on stderr names those that it has."""
    if name not in known:
        names = ", ".join(known) or "none"
        print_error(f"timesyncd: {place} has no source {name!r}; known sources: {names}")
    return name in known


#: Of the page of a daemon that `--url` names without a port.
DEFAULT_PORT = 8319


def add_url_argument(parser: ArgumentParser, text: str = "a daemon's page (default: from the configuration)") -> None:
    parser.add_argument("--url", type=url_of, metavar="URL", help=f"{text}; HOST or HOST:PORT is enough")


def url_of(text: str) -> str:
    """The URL of an argument. Raises ArgumentTypeError if it can be none."""
    url = text if "://" in text else _url_of_host(text)
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and is_host(parts.hostname or "") and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise ArgumentTypeError(f"{text!r} is no address of a page: give a host, HOST:PORT or an http or https URL")
    return url


def is_host(name: str) -> bool:
    """Whether a name server, or the system, can be asked for it. Raises UnicodeError, as for an empty or too long label."""
    return bool(name.encode("idna")) and name.isprintable() and not any(each.isspace() for each in name)


def _url_of_host(text: str) -> str:
    """An IPv6 address may stand without brackets where no port follows."""
    host = f"[{text}]" if text.count(":") > 1 and not text.startswith("[") else text
    has_port = ":" in host.rpartition("]")[2]
    return f"http://{host}/" if has_port else f"http://{host}:{DEFAULT_PORT}/"


def is_missing(path: Path) -> bool:
    """Whether nothing is there. Of a path in a folder that may not be entered that is unknown: its reader reports the reason."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def load_config(args: Namespace) -> Config:
    """The configuration with the drivers' options. Raises ConfigError."""
    from timesyncd import config
    from timesyncd.driver import options_of

    return config.load(args.config, options_of)


def page_trust(config: Config) -> SSLContext | None:
    """
    Trusts exactly the configured certificate, for any host name: this machine's daemon has a certificate for other
    names, perhaps of an authority that this machine does not trust. None: there is no readable certificate.
    """
    import ssl

    if config.web is None or config.web.certificate is None:
        return None
    trusted = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusted.check_hostname = False
    trusted.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        trusted.load_verify_locations(config.web.certificate)
    except OSError:
        return None
    return trusted


def page_url(args: Namespace) -> str:
    """The URL of the configured daemon on this machine. Raises ConfigError."""
    from timesyncd.errors import ConfigError

    web = load_config(args).web
    if web is None or web.port == 0:
        raise ConfigError(
            f"{args.config}: no [web] section with a fixed port, so the daemon's URL is unknown: give --url"
        )
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(web.host, web.host)
    return f"{'https' if web.certificate else 'http'}://{f'[{host}]' if ':' in host else host}:{web.port}/"


def parsed_reply(parse: Callable[[], T], url: str, path: str) -> T:
    """What `parse` makes of a daemon's reply to `path`. Raises Malformed for a reply of another form than this version's."""
    from pydantic import ValidationError

    from timesyncd.client.api import unlike_timesyncd
    from timesyncd.config import validation_text

    try:
        return parse()
    except ValidationError as error:
        raise unlike_timesyncd(url, path, validation_text(error, with_value=False)) from error


def job_url(args: Namespace) -> str:
    """The daemon of --url, else this machine's by the configuration, else its default address. Raises ConfigError."""
    if args.url is None and is_missing(args.config):
        return DEFAULT_URL
    return str(args.url or page_url(args))


def store_place(args: Namespace, without: str) -> StoreLocation:
    """
    The store of `--store`, else of the configuration; `without` names the consequence of none. Raises ConfigError.
    """
    from timesyncd.store.engine import StoreLocation

    if args.store is not None:
        return StoreLocation.named(args.store)
    settings = load_config(args).store
    if settings is None:
        raise ConfigError(f"{args.config}: no [store] section, {without}; name a store with --store")
    return StoreLocation.of(settings)


def report_damaged(rows: int) -> None:
    """On standard error, so that JSON lines stay JSON lines."""
    if rows:
        print(f"timesyncd: {rows} damaged rows of the store are left out: docs/store.md, Damage", file=sys.stderr)


_EXTRA = ("jinja2", "matplotlib", "pydantic")


def audit_extra_is_missing(command: str) -> bool:
    """Whether the audit extra is missing, with a message. Nothing is imported, which would delay a script's start."""
    if all(find_spec(name) is not None for name in _EXTRA):
        return False
    print(
        f"timesyncd {command}: the audit extra is missing: in timesyncd's source folder, pip install '.[audit]'",
        file=sys.stderr,
    )
    return True


def count_of(text: str) -> int:
    """The number of an argument. Raises ArgumentTypeError if it is not 1 or more."""
    if not text.isdecimal() or int(text) == 0:
        raise ArgumentTypeError(f"{text!r} is not a number of 1 or more")
    return int(text)
