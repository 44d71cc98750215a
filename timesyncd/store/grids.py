"""
The past on a grid of equal steps, as charts need it: records of any span in, minimum, weighted median and maximum of each step
out. Steps without a value are None.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Annotated, Any

from pydantic import Field, TypeAdapter
from sqlalchemy import func, select

from timesyncd.clocks import NS_PER_S
from timesyncd.ipc.wire_types import Int64
from timesyncd.messages.node import Message
from timesyncd.store.engine import StoreLocation, reading
from timesyncd.store.intact import checked, intact
from timesyncd.store.rollups import HOUR_S, MINUTE_S
from timesyncd.store.series import Record
from timesyncd.store.tables import clock_sample, grandmaster_sample, rollup

NS_PER_MS = 1_000_000

#: The time after which no row can be, and which a query may name.
_LATEST_NS = 2**63 - 1

#: A week of a grandmaster that is polled each 5 s.
MAX_ROWS = 150_000
#: A grandmaster that gave no sample for so many of its intervals is a hole in the chart.
HOLE_INTERVALS = 5
SHORTEST_HOLE_NS = 60 * NS_PER_S


@dataclass(frozen=True, slots=True)
class Grid:
    """`steps` steps of `step_ns` from `begin_ns` on, all whole milliseconds of Unix time."""

    begin_ns: int
    step_ns: int
    steps: int

    @classmethod
    def of(cls, since_ns: int, until_ns: int, points: int, shortest_ns: int = NS_PER_S) -> Grid:
        """At most `points` steps that cover [since, until); steps begin at whole multiples of their length."""
        step_ns = max(shortest_ns, -(-(until_ns - since_ns) // max(1, points - 1)))
        step_ns = -(-step_ns // NS_PER_MS) * NS_PER_MS
        begin_ns = since_ns // step_ns * step_ns
        return cls(begin_ns, step_ns, max(1, -(-(until_ns - begin_ns) // step_ns)))

    @property
    def end_ns(self) -> int:
        """The last step of a grid that ends centuries ahead may be cut short: the store holds no later time."""
        return min(self.begin_ns + self.steps * self.step_ns, _LATEST_NS)

    def indices(self, realtime_ns: int, span_ns: int) -> range:
        """The steps that a record of this span covers."""
        first = max(0, (realtime_ns - self.begin_ns) // self.step_ns)
        last = (max(realtime_ns, realtime_ns + span_ns - 1) - self.begin_ns) // self.step_ns
        return range(first, min(last, self.steps - 1) + 1)


class _SatelliteLevel(Message):
    number: Int64
    cn0_db_hz: Int64 | None = None


class _PortClients(Message):
    clients: Annotated[int, Field(ge=0, lt=2**32)] | None = None


_LEVELS, _CLIENTS = TypeAdapter(list[_SatelliteLevel]), TypeAdapter(list[_PortClients])
_TERMS = TypeAdapter(dict[str, Int64])


@dataclass(frozen=True, slots=True)
class Envelope:
    """Minimum, median and maximum of each step, and when the newest value ended (None: there is none)."""

    minimum: list[int | None]
    median: list[int | None]
    maximum: list[int | None]
    newest_ns: int | None


def envelope(records: Iterable[Record], grid: Grid) -> Envelope:
    """Records as `series` returns them. One that is longer than a step fills all steps that it covers."""
    steps: list[list[Record]] = [[] for _ in range(grid.steps)]
    newest_ns: int | None = None
    for record in records:
        span_ns = record["span_s"] * NS_PER_S
        end_ns = record["realtime_ns"] + span_ns
        newest_ns = end_ns if newest_ns is None else max(newest_ns, end_ns)
        for index in grid.indices(record["realtime_ns"], span_ns):
            steps[index].append(record)
    return Envelope(
        [min((each["minimum"] for each in of), default=None) for of in steps],
        [_median(of) for of in steps],
        [max((each["maximum"] for each in of), default=None) for of in steps],
        newest_ns,
    )


def _median(records: Sequence[Record]) -> int | None:
    """The median of the records' medians, each weighted by its number of samples."""
    if not records:
        return None
    ordered = sorted(records, key=lambda record: int(record["p50"]))
    half, passed = sum(record["count"] for record in ordered) / 2, 0
    for record in ordered:
        passed += record["count"]
        if passed >= half:
            return int(record["p50"])
    return int(ordered[-1]["p50"])


def rack_grid(since_ns: int, until_ns: int, points: int) -> Grid:
    """A grid of whole minutes; of whole hours where a step is as long as one."""
    shortest_ns = MINUTE_S * NS_PER_S
    step_ns = Grid.of(since_ns, until_ns, points, shortest_ns).step_ns
    unit_ns = HOUR_S * NS_PER_S if step_ns >= HOUR_S * NS_PER_S else shortest_ns
    step_ns = -(-step_ns // unit_ns) * unit_ns
    begin_ns = since_ns // step_ns * step_ns
    return Grid(begin_ns, step_ns, max(1, -(-(until_ns - begin_ns) // step_ns)))


def largest_values(
    location: StoreLocation, node: str, sources: Sequence[str], quantities: Sequence[str], grid: Grid
) -> tuple[dict[tuple[str, str], dict[int, int]], int | None]:
    """
    The largest value of each source and quantity by step, of the roll-ups of a grid as `rack_grid` makes it, and when the
    newest of them ended. Raises StoreError.
    """
    columns = rollup.c
    span_s = HOUR_S if grid.step_ns % (HOUR_S * NS_PER_S) == 0 else MINUTE_S
    step = ((columns.realtime_ns - grid.begin_ns) // grid.step_ns).label("step")
    rows = select(columns.source, columns.quantity, step, func.max(columns.maximum), func.max(columns.realtime_ns)).where(
        columns.node == node, columns.source.in_(sources), columns.quantity.in_(quantities), columns.span_s == span_s,
        columns.realtime_ns >= grid.begin_ns, columns.realtime_ns < grid.end_ns, intact(columns.maximum),
    )  # fmt: skip
    found: dict[tuple[str, str], dict[int, int]] = {}
    newest_ns = None
    with reading(location) as connection:
        for source, quantity, at, value, begins_ns in connection.execute(rows.group_by("source", "quantity", "step")):
            found.setdefault((source, quantity), {})[int(at)] = value
            newest_ns = max(newest_ns or 0, begins_ns + span_s * NS_PER_S)
    return found, newest_ns


def newest_terms(location: StoreLocation, source: str, grid: Grid) -> list[tuple[int, dict[str, int]]]:
    """The terms of the bound of the newest sample in each step, by time; of this node's own raw samples. Raises StoreError."""
    columns = clock_sample.c
    within = (columns.source == source, columns.realtime_ns >= grid.begin_ns, columns.realtime_ns < grid.end_ns)
    step = (columns.realtime_ns - grid.begin_ns) // grid.step_ns
    newest = select(func.max(columns.id)).where(*within).group_by(step)
    rows = select(columns.realtime_ns, columns.terms).where(columns.id.in_(newest), intact(columns.terms))
    with reading(location) as connection:
        found = connection.execute(rows.order_by(columns.realtime_ns)).all()
    return [(at, terms) for at, stored in found if (terms := checked(_TERMS, stored))]


def point(realtime_ns: int, value: int) -> Record:
    """A single value as a record of `series`."""
    return {"realtime_ns": realtime_ns, "span_s": 0, "count": 1} | dict.fromkeys(("minimum", "p50", "maximum"), value)


def grandmaster_values(
    location: StoreLocation, grandmaster: str, names: Sequence[str], grid: Grid
) -> dict[str, list[Record]]:
    """Columns of a grandmaster's samples within the grid, as records by name. Raises StoreError."""
    found: dict[str, list[Record]] = {name: [] for name in names}
    for row in _grandmaster_rows(location, grandmaster, names, grid.begin_ns, grid.end_ns):
        for name, value in zip(names, row[1:], strict=True):
            if value is not None:
                found[name].append(point(row[0], value))
    return found


def _grandmaster_rows(
    location: StoreLocation, grandmaster: str, names: Sequence[str], since_ns: int, until_ns: int
) -> list[Sequence[Any]]:
    columns = [grandmaster_sample.c[name] for name in ("realtime_ns", *names)]
    at = columns[0]
    rows = select(*columns).where(grandmaster_sample.c.source == grandmaster, at >= since_ns, at < until_ns)
    newest = rows.where(intact(*columns)).order_by(at.desc()).limit(MAX_ROWS)
    with reading(location) as connection:
        return list(reversed(connection.execute(newest).all()))


STATE_COLUMNS = ("clock_state", "gnss_state", "antenna")
State = tuple[str | None, str | None, str | None]
NOT_POLLED: State = (None, None, None)


def grandmaster_spans(
    location: StoreLocation, grandmaster: str, since_ns: int, until_ns: int
) -> list[tuple[int, int, State]]:
    """
    Spans (begin, end, state) of a grandmaster's equal states, without holes: where it gave no sample for several of its
    intervals, the state is NOT_POLLED. Raises StoreError.
    """
    rows = _grandmaster_rows(location, grandmaster, STATE_COLUMNS, since_ns, until_ns)
    return state_spans([(row[0], (row[1], row[2], row[3])) for row in rows], since_ns, until_ns)


def state_spans(samples: Sequence[tuple[int, State]], since_ns: int, until_ns: int) -> list[tuple[int, int, State]]:
    """The same of samples (time, state), the oldest first. A state lasts until the next sample, or until the hole's limit."""
    if not samples:
        return [(since_ns, until_ns, NOT_POLLED)]
    polls = [at for at, _ in samples]
    gaps_ns = sorted(later - earlier for earlier, later in pairwise(polls)) or [SHORTEST_HOLE_NS]
    times = [*polls, until_ns]
    hole_ns = max(SHORTEST_HOLE_NS, HOLE_INTERVALS * gaps_ns[len(gaps_ns) // 2])
    pieces: list[tuple[int, int, State]] = [(since_ns, times[0], NOT_POLLED)]
    for (at, state), next_ns in zip(samples, times[1:], strict=True):
        ends_ns = next_ns if next_ns - at <= hole_ns else at + hole_ns
        pieces += [(at, ends_ns, state), (ends_ns, next_ns, NOT_POLLED)]
    real = [piece for piece in pieces if piece[1] > piece[0]]
    groups = [list(group) for _, group in groupby(real, key=lambda piece: piece[2])]
    return [(group[0][0], group[-1][1], group[0][2]) for group in groups]


def satellite_levels(
    location: StoreLocation, grandmaster: str, grid: Grid
) -> tuple[dict[int, dict[int, int]], int | None]:
    """
    C/N0 in dBHz by satellite and step, of the newest whole sample in each step, and the time of the newest one. Raises
    StoreError.
    """
    levels: dict[int, dict[int, int]] = {}
    newest_ns = None
    for at, satellites in _whole_rows(location, grandmaster, "satellites", grid):
        newest_ns = at
        for each in checked(_LEVELS, satellites) or ():
            if each.cn0_db_hz is not None:
                levels.setdefault(each.number, {})[(at - grid.begin_ns) // grid.step_ns] = each.cn0_db_hz
    return levels, newest_ns


def client_counts(location: StoreLocation, grandmaster: str, grid: Grid) -> list[Record]:
    """
    The PTP clients on all ports of a grandmaster, of the newest whole sample in each step. A sample in which no port states a
    number gives none. Raises StoreError.
    """
    found = []
    for at, ports in _whole_rows(location, grandmaster, "ports", grid):
        counts = [port.clients for port in checked(_CLIENTS, ports) or () if port.clients is not None]
        if counts:
            found.append(point(at, sum(counts)))
    return found


def _whole_rows(location: StoreLocation, grandmaster: str, column: str, grid: Grid) -> list[Sequence[Any]]:
    """The time and a slow column of the newest whole sample in each step, the oldest first."""
    columns = grandmaster_sample.c
    within = (
        columns.source == grandmaster, columns.whole, columns.realtime_ns >= grid.begin_ns, columns.realtime_ns < grid.end_ns,
    )  # fmt: skip
    newest = select(func.max(columns.id)).where(*within).group_by((columns.realtime_ns - grid.begin_ns) // grid.step_ns)
    rows = select(columns.realtime_ns, columns[column]).where(columns.id.in_(newest), intact(columns[column]))
    with reading(location) as connection:
        return list(connection.execute(rows.order_by(columns.realtime_ns)).all())
