"""The statistical bound, what both bounds are made of, and the readings of PHC, UTC and kernel sources."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    clock_sample()
    phc_sample()
    utc_sample()
    kernel_sample()


def clock_sample() -> None:
    added = [
        *columns(sa.BigInteger(), "read_ns"),
        *columns(sa.JSON(), "exchanges"),
        *columns(sa.BigInteger(), "parent_stat_bound_ns", "parent_stat_growth_ppb"),
        *columns(sa.BigInteger(), "gm_stat_bound_ns", "gm_stat_growth_ppb"),
        *columns(sa.BigInteger(), "utc_stat_bound_ns", "utc_stat_growth_ppb"),
        *columns(sa.JSON(), "stat_terms", "rates"),
    ]
    for column in added:
        op.add_column("clock_sample", column)


def phc_sample() -> None:
    timed(
        "phc_sample",
        *columns(sa.String(), "source", "clock", nullable=False),
        *columns(sa.BigInteger(), "realtime_ns", "as_of_ns", "real_minus_boot_ns", nullable=False),
        *columns(sa.BigInteger(), "offset_ns", "width_ns", nullable=False),
        *columns(sa.String(), "method", nullable=False),
        *columns(sa.BigInteger(), "frequency_ppb", "system_frequency_ppb"),
        *columns(sa.Boolean(), "steered"),
    )


def utc_sample() -> None:
    timed(
        "utc_sample",
        *columns(sa.String(), "source", nullable=False),
        *columns(sa.BigInteger(), "realtime_ns", "as_of_ns", "real_minus_boot_ns", nullable=False),
        *columns(sa.BigInteger(), "offset_ns", "error_ns", "growth_ppb", nullable=False),
        *columns(sa.String(), "reference", nullable=False),
        *columns(sa.BigInteger(), "stratum", nullable=False),
        *columns(sa.String(), "leap", nullable=False),
        *columns(sa.BigInteger(), "root_delay_ns", "root_dispersion_ns", nullable=False),
        *columns(sa.BigInteger(), "frequency_ppb", "skew_ppb"),
        *columns(sa.JSON(), "ntp_sources"),
        *columns(sa.String(), "utc_status"),
        *columns(sa.BigInteger(), "utc_bound_ns", "utc_growth_ppb"),
        *columns(sa.String(), "utc_reason"),
    )


def kernel_sample() -> None:
    timed(
        "kernel_sample",
        *columns(sa.String(), "source", nullable=False),
        *columns(sa.BigInteger(), "realtime_ns", "boottime_ns", nullable=False),
        *columns(sa.BigInteger(), "frequency_ppb", "maxerror_ns", "esterror_ns", nullable=False),
        *columns(sa.Boolean(), "synchronized", nullable=False),
        *columns(sa.String(), "leap", nullable=False),
        *columns(sa.BigInteger(), "tai_offset_s", nullable=False),
        *columns(sa.JSON(), "disciplines", "undecided_disciplines"),
        *columns(sa.BigInteger(), "vm_disruptions"),
    )


def timed(name: str, *own: sa.Column[Any]) -> None:
    """A table whose rows have an id, a source and a time, with the index that queries and retention use."""
    id_type = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    key = sa.PrimaryKeyConstraint("id", name=f"pk_{name}")
    op.create_table(name, sa.Column("id", id_type, nullable=False), *own, key)
    op.create_index(f"ix_{name}_source_realtime_ns", name, ["source", "realtime_ns"])


def columns(of: Any, *names: str, nullable: bool = True) -> list[sa.Column[Any]]:
    return [sa.Column(name, of, nullable=nullable) for name in names]
