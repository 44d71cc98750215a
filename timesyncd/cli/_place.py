"""Where the store is that a command reads."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from timesyncd.cli._common import load_config
from timesyncd.errors import ConfigError

if TYPE_CHECKING:
    from timesyncd.store.place import Place


def store_place(args: Namespace, without: str) -> Place:
    """As `--store` names it, else the configuration; `without` says what is not possible where there is none. Raises ConfigError."""
    from timesyncd.store.place import Place

    if args.store is not None:
        return Place.named(args.store)
    settings = load_config(args).store
    if settings is None:
        raise ConfigError(f"{args.config}: no [store], {without}; --store names a file")
    return Place.of(settings)
