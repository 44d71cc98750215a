"""What several commands share: where the configuration is."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from timesyncd.config import Config

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


def page_url(args: Namespace) -> str:
    """Where the configured daemon answers. Raises ConfigError."""
    from timesyncd.errors import ConfigError

    web = load_config(args).web
    if web is None or web.port == 0:
        raise ConfigError(
            f"{args.config}: web: no [web] section with a fixed port, so the daemon cannot be asked: give --url"
        )
    return f"http://{web.host}:{web.port}/"
