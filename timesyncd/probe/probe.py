"""
What a grandmaster serves: the subtrees that distinguish families, then every object of every profile, then what no profile explains.

What a grandmaster served of each object of the profiles, decoded one by one, so that a wrong one hides no other. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

from timesyncd.clocks import SystemClocks
from timesyncd.drivers.timeprovider._assemble import assemble
from timesyncd.drivers.timeprovider._decoders import Unknown, Value
from timesyncd.drivers.timeprovider._evidence import Rows
from timesyncd.drivers.timeprovider._grandmaster_reader import ROW_CAP
from timesyncd.drivers.timeprovider._profiles import Object, Profile
from timesyncd.errors import Malformed, SourceError
from timesyncd.probe.access import ProbeAccess, Progress
from timesyncd.probe.web import WebReport, fingerprint, look
from timesyncd.sample import GrandmasterSample
from timesyncd.snmp import Index, Oid, Raw, Session, parse_oid


@dataclass(frozen=True, slots=True)
class ProbedValue:
    """One value. `problem`: it is of the wrong type, and `value` is what came."""

    index: Index
    raw: Raw
    value: Value
    problem: str | None = None

    @property
    def understood(self) -> bool:
        return self.problem is None and not isinstance(self.value, Unknown)


@dataclass(frozen=True, slots=True)
class ObjectReport:
    """`cells` is empty where the grandmaster does not provide the object. `cut`: it has more rows than were read."""

    entry: Object
    cells: tuple[ProbedValue, ...]
    cut: bool = False


def object_reports(profile: Profile, rows: Rows, cut: Collection[Oid] = ()) -> list[ObjectReport]:
    """Object by object, in the profile's order."""
    return [
        ObjectReport(entry, tuple(_cell(entry, index, raw) for index, raw in sorted(found.items())), entry.oid in cut)
        for entry in profile.object
        for found in [rows.get(entry.oid, {})]
    ]


def _cell(entry: Object, index: Index, raw: Raw) -> ProbedValue:
    try:
        return ProbedValue(index, raw, entry.decode(raw, index))
    except Malformed as error:
        return ProbedValue(index, raw, str(raw), str(error))


def readable(reports: Iterable[ObjectReport]) -> Rows:
    """The values of the type that every profile declares, from which a sample can be made."""
    all_reports = list(reports)
    wrong = {(each.entry.oid, cell.index) for each in all_reports for cell in each.cells if cell.problem is not None}
    rows: dict[Oid, dict[Index, Raw]] = {}
    for each in all_reports:
        for cell in each.cells:
            if (each.entry.oid, cell.index) not in wrong:
                rows.setdefault(each.entry.oid, {})[cell.index] = cell.raw
    return rows


def rows_of(profiles: Iterable[Profile], walk: Iterable[tuple[Oid, Raw]]) -> Rows:
    """What a walk contains of the profiles' objects."""
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


VENDOR = parse_oid("1.3.6.1.4.1.9070")
#: Below it the next arc names the device whose own MIB is served.
DEVICES = (*VENDOR, 1, 2, 5, 7)
DEVICE_NAMES = {1: "TP5000E", 4: "S650 alarms", 8: "S650"}

#: Subtrees that show which MIBs an agent has. sysObjectID decides nothing: the same model changes it between firmware versions.
ROOTS = {
    parse_oid("1.3.6.1.2.1.241.1.2"): "PTPBASE-MIB (RFC 8173)",
    parse_oid("1.3.6.1.2.1.197.1.2"): "NTPv4-MIB (RFC 5907)",
    parse_oid("1.3.6.1.2.1.47"): "ENTITY-MIB",
    (*VENDOR, 1, 2, 5, 1, 1, 1, 1): "vendor's shared PTP table",
    (*VENDOR, 1, 2, 5, 2, 1, 1): "vendor's shared GNSS tables",
    DEVICES: "vendor's devices",
    (*VENDOR, 1, 2, 5, 7, 8): "S650",
    (*VENDOR, 1, 2, 4, 6): "TP5000",
}

SYS_DESCR, SYS_OBJECT_ID, UPTIME = (parse_oid(f"1.3.6.1.2.1.1.{arc}") for arc in (1, 2, 3))
ENGINE_BOOTS = parse_oid("1.3.6.1.6.3.10.2.1.2")

#: More of the vendor's objects than any grandmaster's lists of clients hold; a larger tree is counted so far.
VENDOR_CAP = 20_000
PROGRESS_EVERY = 1_000


@dataclass(frozen=True, slots=True)
class ProfileReport:
    profile: Profile
    objects: tuple[ObjectReport, ...]

    @property
    def absent(self) -> list[str]:
        """Fields that the grandmaster does not provide by this profile, each once, though another of its objects may fill it."""
        provided = {each.entry.field for each in self.objects if each.cells}
        return [f for f in dict.fromkeys(each.entry.field for each in self.objects) if f not in provided]


@dataclass(frozen=True, slots=True)
class SnmpReport:
    """
    `system` holds the four scalars that every agent should have; `below` the first object below each subtree, None: none.
    `sample` is what the driver would make of it. `vendor_cut`: there is more of the vendor's than was counted.
    """

    system: Rows
    below: dict[Oid, Oid | None]
    served: tuple[ProfileReport, ...]
    silent: tuple[Profile, ...]
    sample: GrandmasterSample
    uncovered: tuple[Branch, ...]
    vendor_cut: bool

    @property
    def not_provided(self) -> list[str]:
        """Of what a sample may hold over SNMP, what none of the profiles served brought."""
        return [
            each.name
            for each in fields(self.sample)
            if each.name != "time_errors" and getattr(self.sample, each.name) is None
        ]

    @property
    def device_branch(self) -> int | None:
        first = self.below.get(DEVICES)
        return None if first is None else first[len(DEVICES)]


@dataclass(frozen=True, slots=True)
class Probe:
    """A part that was asked and did not answer is None, and its error is in `errors`; `web_note`: why nothing is known of HTTPS."""

    access: ProbeAccess
    snmp: SnmpReport | None
    web: WebReport | None
    web_note: str | None
    errors: tuple[SourceError, ...]


async def probe(access: ProbeAccess, profiles: Sequence[Profile], progress: Progress) -> Probe:
    """Everything at once. Raises nothing that a grandmaster causes: see `errors`."""
    errors: list[SourceError] = []
    snmp = None
    if access.snmp is not None:
        try:
            snmp = await ask(access, profiles, progress)
        except SourceError as error:
            errors.append(error)
    progress(f"{access.host}:{access.https_port}: looking at its web interface")
    web, note = None, None
    try:
        shown = await fingerprint(access)
        web = WebReport(shown)
        web = await look(access, shown)
    except SourceError as error:
        note = str(error)
        if access.web is not None:
            errors.append(error)
    return Probe(access, snmp, web, note, tuple(errors))


async def ask(access: ProbeAccess, profiles: Sequence[Profile], progress: Progress) -> SnmpReport:
    """The part over SNMP. Raises SourceError."""
    assert access.snmp is not None
    session = await Session.open(access.host, access.port, access.snmp.credentials, access.timeout_s)
    try:
        progress(f"{access.device}: asking what it serves")
        system = await session.get([SYS_OBJECT_ID, SYS_DESCR, UPTIME, ENGINE_BOOTS])
        proofs = [proof for profile in profiles for proof in profile.proved_by]
        below = await session.next_below(list(dict.fromkeys([*ROOTS, *proofs])))
        found = served(profiles, below)
        reports = [await _read(session, profile, access.device, progress) for profile in found]
        vendors, cut = await _vendors(session, access.device, progress)
    finally:
        session.close()
    rows = readable(each for part in reports for each in part.objects)
    sample = assemble(access.host, SystemClocks().boottime_ns(), found, rows)
    silent = tuple(profile for profile in profiles if profile.proved_by and profile not in found)
    return SnmpReport(system, below, tuple(reports), silent, sample, tuple(uncovered(vendors, profiles)), cut)


async def _read(session: Session, profile: Profile, device: str, progress: Progress) -> ProfileReport:
    progress(f"{device}: reading {profile.name}")
    scalars = dict.fromkeys(entry.oid for entry in profile.object if not entry.index)
    columns = dict.fromkeys(entry.oid for entry in profile.object if entry.index)
    rows = await session.get(list(scalars))
    walked, cut = await session.walk(list(columns), ROW_CAP)
    return ProfileReport(profile, tuple(object_reports(profile, rows | walked, cut)))


async def _vendors(session: Session, device: str, progress: Progress) -> tuple[list[Oid], bool]:
    """All that is served below the vendor's own arc, and whether there is more."""
    oids = []
    async for oid, _, _ in session.walk_subtree(VENDOR, VENDOR_CAP + 1):
        oids.append(oid)
        if len(oids) % PROGRESS_EVERY == 0:
            progress(f"{device}: {len(oids)} of the vendor's objects")
    return oids[:VENDOR_CAP], len(oids) > VENDOR_CAP
