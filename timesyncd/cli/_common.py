"""
What several commands share: where the configuration is.

Where the store is that a command reads.

What the two audit commands share.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from timesyncd.errors import ConfigError

if TYPE_CHECKING:
    from ssl import SSLContext

    from timesyncd.config import Config
    from timesyncd.store.engine import StoreLocation

DEFAULT_CONFIG = "/etc/timesyncd/timesyncd.toml"


def add_config_argument(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--config", type=Path, default=Path(DEFAULT_CONFIG), metavar="FILE", help=f"default: {DEFAULT_CONFIG}"
    )


def load_config(args: Namespace) -> Config:
    """Raises ConfigError, one line."""
    from timesyncd import config
    from timesyncd.driver import options_of

    return config.load(args.config, options_of)


def page_trust(config: Config) -> SSLContext | None:
    """
    Believes who shows the configured certificate itself, by whatever name: what this machine's daemon shows is for names that
    others ask by, and may be signed by nobody that is trusted here. None: there is none that can be read.
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
    """Where the configured daemon answers on this machine. Raises ConfigError."""
    from timesyncd.errors import ConfigError

    web = load_config(args).web
    if web is None or web.port == 0:
        raise ConfigError(
            f"{args.config}: web: no [web] section with a fixed port, so the daemon cannot be asked: give --url"
        )
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(web.host, web.host)
    return f"{'https' if web.certificate else 'http'}://{f'[{host}]' if ':' in host else host}:{web.port}/"


def store_place(args: Namespace, without: str) -> StoreLocation:
    """As `--store` names it, else the configuration; `without` says what is not possible where there is none. Raises ConfigError."""
    from timesyncd.store.engine import StoreLocation

    if args.store is not None:
        return StoreLocation.named(args.store)
    settings = load_config(args).store
    if settings is None:
        raise ConfigError(f"{args.config}: no [store], {without}; --store names a file")
    return StoreLocation.of(settings)


_EXTRA = ("jinja2", "matplotlib", "pydantic")


def audit_extra_is_missing(command: str) -> bool:
    """Says which extra is missing, where one is; nothing is imported, so that a script need not wait for it."""
    if all(find_spec(name) is not None for name in _EXTRA):
        return False
    print(f"timesyncd {command} needs the audit extra: pip install 'timesyncd[audit]'", file=sys.stderr)
    return True
