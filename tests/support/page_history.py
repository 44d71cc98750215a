"""The past of `page_fleet` in a store, as a daemon that ran for hours would have it: for pictures, and for charts with many points."""

from __future__ import annotations

import json
import math
import random
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import page_fleet

from timesyncd import config
from timesyncd.clocks import NS_PER_S, SystemClocks
from timesyncd.ipc.job_datagram import job_id
from timesyncd.simulation.grandmaster import Device
from timesyncd.store import tables
from timesyncd.store.hub_sources import FLEET_SOURCE, job_source, rack_source
from timesyncd.store.writer import Store

MINUTE_NS = 60 * NS_PER_S
UID = 1_000
#: The own node's raw samples and the grandmasters' are one in so many seconds.
SAMPLE_EVERY_S, POLL_EVERY_S = 10, 30

Values = tuple[str, int, int, int]
"""A quantity with its minimum, median and maximum."""


def write_history(path: Path, devices: dict[str, Device], hours: int) -> None:
    """Until a minute ago. `path` is made with its tables."""
    path.parent.mkdir(parents=True, exist_ok=True)
    store = Store(config.StoreSettings(path=path), SystemClocks(), lambda problem: None)
    store.start()
    store.stop()
    now_ns = time.time_ns() // MINUTE_NS * MINUTE_NS
    chance = random.Random(11)
    minutes = [now_ns - n * MINUTE_NS for n in range(hours * 60, 0, -1)]
    with sqlite3.connect(path) as database:
        rows = [row for at_ns in minutes for row in _minute(at_ns, now_ns, chance)]
        database.executemany(f"INSERT INTO rollup VALUES ({','.join('?' * 11)})", rows)
        for table, found in (
            (tables.clock_sample, _own_samples(now_ns, chance)),
            (
                tables.grandmaster_sample,
                (row for name, device in devices.items() for row in _polls(name, device, now_ns)),
            ),
            (tables.time_error, (row for name in devices for row in _time_errors(name, now_ns, chance))),
        ):
            for values in found:
                whole = {
                    column.name: None if column.nullable else 0 for column in table.columns if column.name != "id"
                } | values
                names, marks = ",".join(f'"{name}"' for name in whole), ",".join("?" * len(whole))
                database.execute(f"INSERT INTO {table.name} ({names}) VALUES ({marks})", list(whole.values()))
    database.close()


def _minute(at_ns: int, now_ns: int, chance: random.Random) -> Iterator[tuple[Any, ...]]:
    """Everything of one minute; four hours ago some nodes had no bound for a while."""
    ago = (now_ns - at_ns) // MINUTE_NS
    lost = 12 if 236 <= ago < 244 else 0
    p50, p99 = round(chance.gauss(1_480, 40)), round(chance.gauss(2_400, 80))
    worst = round(chance.gauss(3_350, 170)) + (900 if 90 <= ago < 100 else 0)
    nodes = page_fleet.HALLS * page_fleet.RACKS_OF_A_HALL * page_fleet.NODES_OF_A_RACK
    fleet: list[Values] = [
        ("p50_bound_ns", p50 - 30, p50, p50 + 30), ("p99_bound_ns", p99 - 90, p99, p99 + 90),
        ("worst_bound_ns", worst - 200, worst, worst + 250), ("alignment_ns", 2 * worst - 400, 2 * worst - 200, 2 * worst),
        ("without_bound", lost, lost, lost), ("nodes", nodes, nodes, nodes), ("compared", nodes - lost, nodes - lost, nodes - lost),
    ]  # fmt: skip
    yield from _rollups(FLEET_SOURCE, at_ns, fleet)
    for rack in range(page_fleet.HALLS * page_fleet.RACKS_OF_A_HALL):
        wide = (
            round(chance.gauss(2_300, 320))
            + (18_000 if chance.random() < 0.004 else 0)
            + (9_000 if rack == 11 and 20 <= ago < 34 else 0)
        )
        gone = 4 if rack in (7, 8) and 236 <= ago < 244 else 0
        of_rack: list[Values] = [("widest_bound_ns", wide - 300, wide - 100, wide), ("without_bound", gone, gone, gone)]
        yield from _rollups(rack_source(page_fleet.rack_name(rack)), at_ns, of_rack)
    for job in page_fleet.JOBS:
        aligned, skew = round(chance.gauss(4_300, 160)), round(chance.gauss(780_000, 60_000))
        of_job: list[Values] = [
            ("alignment_ns", aligned - 200, aligned, aligned + 200),
            ("arrival_skew_p50_ns", skew, skew, skew),
        ]
        yield from _rollups(job_source(job_id(UID, job.name, 0)), at_ns, of_job)


def _rollups(source: str, at_ns: int, values: list[Values]) -> Iterator[tuple[Any, ...]]:
    for quantity, low, middle, high in values:
        yield (page_fleet.HUB, source, quantity, 60, at_ns, 6, low, high, middle, middle, high)


def _own_samples(now_ns: int, chance: random.Random) -> Iterator[dict[str, Any]]:
    """An hour of the hub's own clock: twenty minutes ago Syncs were lost for a minute, and the bound grew."""
    boot_ns = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    for ago_s in range(3_600, 0, -SAMPLE_EVERY_S):
        if 1_200 <= ago_s < 1_290:
            continue
        at_ns = now_ns - ago_s * NS_PER_S
        offset, delay = round(chance.gauss(0, 70)), round(1_960 + 60 * math.sin(ago_s / 300) + chance.gauss(0, 15))
        terms = {
            "path_delay": delay,
            "offset": abs(offset),
            "granularity": 8,
            "path_memory": 260,
            "step_tolerance": 100,
            "phc_reading": 150,
        }
        width = sum(terms.values())
        yield {
            "source": f"ptp-{page_fleet.HUB}", "clock": "realtime", "realtime_ns": at_ns, "as_of_ns": at_ns - boot_ns, "read_ns": at_ns,
            "real_minus_boot_ns": boot_ns, "offset_ns": offset, "path_delay_ns": delay, "frequency_ppb": round(-12_300 + chance.gauss(0, 25)),
            "port_state": "SLAVE", "gm_bound_ns": width, "gm_growth_ppb": 51_000, "gm_stat_bound_ns": 640, "gm_stat_growth_ppb": 1_000,
            "parent_bound_ns": width, "parent_growth_ppb": 51_000, "utc_bound_ns": width + 250, "utc_growth_ppb": 51_100,
            "terms": json.dumps(terms), "gm_status": "SYNCHRONIZED", "utc_status": "SYNCHRONIZED",
        }  # fmt: skip


def _polls(name: str, device: Device, now_ns: int) -> Iterator[dict[str, Any]]:
    """An hour of a healthy grandmaster and its sky."""
    for ago_s in range(3_600, 0, -POLL_EVERY_S):
        seen = device.receiver.sky(3_600.0 - ago_s)
        satellites = [
            {
                "number": each.number, "cn0_db_hz": each.cn0_db_hz, "healthy": each.healthy,
                "azimuth_deg": each.azimuth_deg, "elevation_deg": each.elevation_deg,
            }
            for each in seen
        ]  # fmt: skip
        ports = [{"name": "eth1", "clients": 6 if ago_s < 1_500 else 5}, {"name": "eth2", "clients": 6}]
        at_ns = now_ns - ago_s * NS_PER_S
        yield {
            "source": name, "realtime_ns": at_ns, "boottime_ns": 0, "whole": 1, "clock_state": "locked", "gnss_state": "locked",
            "antenna": "ok", "satellites": json.dumps(satellites), "ports": json.dumps(ports), "utc_bound_ns": 100, "clock_class": 6, "profiles": "[]", "unknown": "[]",
        }  # fmt: skip


def _time_errors(name: str, now_ns: int, chance: random.Random) -> Iterator[dict[str, Any]]:
    """An hour of a channel that the grandmaster measures each second: white noise upon a slow swing."""
    for ago_s in range(3_600, 0, -1):
        value_ns = round(9 * math.sin(ago_s / 400) + chance.gauss(0, 1.5))
        yield {
            "source": name, "channel": "PPS-1", "metric": "te", "realtime_ns": now_ns - ago_s * NS_PER_S, "value_ns": value_ns,
        }  # fmt: skip
