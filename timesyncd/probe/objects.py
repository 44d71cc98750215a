"""What a unit said of each object of the profiles, decoded one by one, so that a wrong one hides no other. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from timesyncd.drivers.timeprovider._decoders import Unknown, Value
from timesyncd.drivers.timeprovider._evidence_part import Rows
from timesyncd.drivers.timeprovider._profiles import Object, Profile
from timesyncd.errors import Malformed
from timesyncd.snmp import Index, Oid, Raw


@dataclass(frozen=True, slots=True)
class Cell:
    """One value. `problem`: it is of the wrong type, and `value` is what came."""

    index: Index
    raw: Raw
    value: Value
    problem: str | None = None

    @property
    def understood(self) -> bool:
        return self.problem is None and not isinstance(self.value, Unknown)


@dataclass(frozen=True, slots=True)
class Said:
    """`cells` is empty where the unit does not provide the object. `cut`: it has more rows than were read."""

    entry: Object
    cells: tuple[Cell, ...]
    cut: bool = False


def said(profile: Profile, rows: Rows, cut: Collection[Oid] = ()) -> list[Said]:
    """Object by object, in the profile's order."""
    return [
        Said(entry, tuple(_cell(entry, index, raw) for index, raw in sorted(found.items())), entry.oid in cut)
        for entry in profile.object
        for found in [rows.get(entry.oid, {})]
    ]


def _cell(entry: Object, index: Index, raw: Raw) -> Cell:
    try:
        return Cell(index, raw, entry.decode(raw, index))
    except Malformed as error:
        return Cell(index, raw, str(raw), str(error))


def readable(told: Iterable[Said]) -> Rows:
    """What has the type that every profile says: what a sample can be made of."""
    all_said = list(told)
    wrong = {(each.entry.oid, cell.index) for each in all_said for cell in each.cells if cell.problem is not None}
    rows: dict[Oid, dict[Index, Raw]] = {}
    for each in all_said:
        for cell in each.cells:
            if (each.entry.oid, cell.index) not in wrong:
                rows.setdefault(each.entry.oid, {})[cell.index] = cell.raw
    return rows


def rows_of(profiles: Iterable[Profile], walk: Iterable[tuple[Oid, Raw]]) -> Rows:
    """What a walk says of the profiles' objects."""
    wanted = {entry.oid for profile in profiles for entry in profile.object}
    lengths = {len(oid) for oid in wanted}
    rows: dict[Oid, dict[Index, Raw]] = {}
    for oid, raw in walk:
        for length in lengths:
            if oid[:length] in wanted and len(oid) > length:
                rows.setdefault(oid[:length], {})[oid[length:]] = raw
    return rows


def served(profiles: Iterable[Profile], below: Mapping[Oid, Oid | None]) -> list[Profile]:
    """Those of which a proof has anything below it, as the driver decides it."""
    return [profile for profile in profiles if any(below.get(proof) is not None for proof in profile.proved_by)]


@dataclass(frozen=True, slots=True)
class Branch:
    """What answers at one place of the vendor's tree, and no profile explains."""

    oid: Oid
    objects: int


#: Arcs of a branch: 1.3.6.1.4.1.9070.1.2.5.<kind>.<device or signal>.
BRANCH_ARCS = 12


def uncovered(oids: Iterable[Oid], profiles: Sequence[Profile]) -> list[Branch]:
    """Counted by branch, in the order of OIDs; `profiles` need not be served, only known."""
    known = {entry.oid for profile in profiles for entry in profile.object}
    lengths = {len(oid) for oid in known}
    counts = Counter(oid[:BRANCH_ARCS] for oid in oids if not any(oid[:length] in known for length in lengths))
    return [Branch(oid, count) for oid, count in sorted(counts.items())]
