"""The result of a probe as tables of 80 columns and as JSON. Strings from the network are printed as text. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from timesyncd.cli.render import plain_text, table_with_headings
from timesyncd.drivers.timeprovider._decoders import Unknown, Value
from timesyncd.drivers.timeprovider._profiles import Profile, value_text
from timesyncd.probe.probe import (
    DEVICE_NAMES,
    DEVICES,
    ROOTS,
    ObjectReport,
    Probe,
    ProbedValue,
    ProfileReport,
    SnmpReport,
)
from timesyncd.probe.suggestion import suggestion
from timesyncd.probe.web import WebReport
from timesyncd.sample import Position, TimeError
from timesyncd.snmp import Community, Raw, format_oid
from timesyncd.units import duration_text, span_text

#: The number of different values of a column, and the length of a value, that are printed.
MAX_VALUES = 6
MAX_TEXT = 60


def tables(probe: Probe) -> list[RenderableType]:
    """All tables; the configuration is printed apart from them."""
    parts: list[RenderableType] = []
    if probe.snmp is not None:
        how = "v2c" if probe.access.snmp and isinstance(probe.access.snmp.credentials, Community) else "v3"
        parts += [Text(f"{probe.access.device} replies to SNMP {how}", "bold"), _facts(probe.snmp), Text()]
        parts += [_roots(probe.snmp), Text(), _summary(probe.snmp)]
        for reply in probe.snmp.served:
            parts += [Text(), *_profile(reply)]
        parts += [Text(), *_uncovered(probe.snmp)]
    if probe.web is not None or probe.web_note is not None:
        parts += [Text(), *_web(probe)]
    return parts


def _facts(snmp: SnmpReport) -> RenderableType:
    sample = snmp.sample
    known = [
        ("model", sample.model),
        ("firmware", sample.firmware),
        ("serial", sample.serial),
        ("clock", sample.clock_state),
        ("sysObjectID", sample.sys_object_id),
        ("sysDescr", sample.sys_descr),
        ("up for", None if sample.uptime_s is None else span_text(sample.uptime_s * 1_000_000_000)),
        ("engine boots", None if sample.engine_boots is None else str(sample.engine_boots)),
    ]
    table = Table.grid(padding=(0, 2))
    for name, value in known:
        if value is not None:
            table.add_row(Text(f"  {name}", "dim"), plain_text(value))
    table.add_row(Text("  not provided", "dim"), Text(", ".join(snmp.not_provided) or "nothing", "dim"))
    return table


def _roots(snmp: SnmpReport) -> RenderableType:
    rows = []
    for root, name in ROOTS.items():
        first = snmp.below[root]
        answer = "nothing" if first is None else "yes"
        if root == DEVICES and snmp.device_branch is not None:
            answer = f"branch {snmp.device_branch}: {DEVICE_NAMES.get(snmp.device_branch, 'an unknown device')}"
        rows.append([plain_text(name), plain_text(format_oid(root), "dim"), plain_text(answer, "" if first else "dim")])
    return table_with_headings(["subtree", "OID", "served"], rows)


def _summary(snmp: SnmpReport) -> RenderableType:
    rows = [[Text(reply.profile.name, "bold"), Text("yes", "green"), Text(_share(reply))] for reply in snmp.served]
    rows += [[Text(profile.name), Text("no", "dim"), Text()] for profile in snmp.silent]
    return table_with_headings(["profile", "answered", "objects provided"], rows)


def _share(reply: ProfileReport) -> str:
    return f"{sum(bool(each.cells) for each in reply.objects)} of {len(reply.objects)}"


def _profile(reply: ProfileReport) -> list[RenderableType]:
    provided = [each for each in reply.objects if each.cells]
    rows = [[plain_text(each.entry.field), _values(each), Text(each.entry.confidence, "dim")] for each in provided]
    parts: list[RenderableType] = [
        Text(f"objects of profile {reply.profile.name}", "bold"),
        table_with_headings(["field", "value", "confidence"], rows),
    ]
    if reply.absent:
        parts.append(plain_text(f"not provided: {', '.join(reply.absent)}", "dim"))
    return parts


def _values(each: ObjectReport) -> Text:
    different = dict.fromkeys(map(_text, each.cells))
    listed = ", ".join(list(different)[:MAX_VALUES]) + (", ..." if len(different) > MAX_VALUES else "")
    rows = f"  ({len(each.cells)}{' or more' if each.cut else ''} rows)" if len(each.cells) > 1 else ""
    return plain_text(listed + rows, "" if all(cell.understood for cell in each.cells) else "yellow")


def _text(cell: ProbedValue) -> str:
    if cell.problem is not None:
        return f"wrong type: {raw_text(cell.raw)}"
    match cell.value:
        case Unknown(text):
            return text
        case Position(latitude, longitude, height):
            return f"{latitude:.5f} {longitude:.5f}" + ("" if height is None else f", {height:.1f} m")
        case bool():
            return "yes" if cell.value else "no"
        case float() as number:
            return f"{number:.6g}"
    return (value_text(cell.value).splitlines() or ['""'])[0][:MAX_TEXT] or '""'


def raw_text(raw: Raw) -> str:
    return raw.hex(" ")[:MAX_TEXT] if isinstance(raw, bytes) else str(raw)[:MAX_TEXT]


def _uncovered(snmp: SnmpReport) -> list[RenderableType]:
    if not snmp.uncovered:
        return [Text("every object below 1.3.6.1.4.1.9070 has a profile", "dim")]
    rows = [[plain_text(format_oid(branch.oid)), Text(str(branch.objects))] for branch in snmp.uncovered]
    more = " (incomplete: the count reached its limit)" if snmp.vendor_cut else ""
    return [
        Text(f"objects that no profile describes{more}", "bold"),
        table_with_headings(["branch", "objects"], rows),
        Text("a recording helps to add a profile: timesyncd record", "dim"),
    ]


def _web(probe: Probe) -> list[RenderableType]:
    place = f"{probe.access.host}:{probe.access.https_port}"
    web = probe.web
    if web is None:
        return [plain_text(probe.web_note or "", "dim")]
    parts: list[RenderableType] = [Text(f"{place} replies to HTTPS", "bold"), Text("  certificate (SHA-256)", "dim")]
    parts.append(Text(f"  {web.fingerprint}", no_wrap=True))
    if probe.web_note is not None:
        return [*parts, plain_text(f"  {probe.web_note}", "yellow")]
    if web.channels is None:
        return [
            *parts,
            Text("  compare it with the grandmaster's own, then log in with --https-username and --fingerprint", "dim"),
        ]
    states = [
        [plain_text(each.name), Text("monitored" if each.monitored else "not monitored")] for each in web.channels
    ]
    errors = [[plain_text(each.channel), Text(each.metric), *_error(each)] for each in web.time_errors]
    parts += [
        table_with_headings(["channel", "state"], states),
        table_with_headings(["channel", "metric", "value", "against"], errors),
    ]
    parts.append(plain_text(f"TAI - UTC: {'not provided' if web.utc_offset_s is None else f'{web.utc_offset_s} s'}"))
    return parts + [plain_text(note, "yellow") for note in web.notes]


def _error(each: TimeError) -> list[Text]:
    return [Text(duration_text(each.value_ns)), plain_text(each.reference or "not provided")]


def as_json(probe: Probe, own_profiles: Sequence[str] = ()) -> dict[str, Any]:
    """The result as JSON; raw octets are hexadecimal."""
    return {
        "host": probe.access.host,
        "snmp": None if probe.snmp is None else _snmp_json(probe.snmp),
        "https": None if probe.web is None else _web_json(probe.web),
        "errors": [str(error) for error in probe.errors],
        "config": suggestion(probe, own_profiles),
    }


def _snmp_json(snmp: SnmpReport) -> dict[str, Any]:
    return {
        "roots": {format_oid(root): None if oid is None else format_oid(oid) for root, oid in snmp.below.items()},
        "device_branch": snmp.device_branch,
        "profiles": [_profile_json(reply) for reply in snmp.served]
        + [_silent_json(profile) for profile in snmp.silent],
        "not_provided": snmp.not_provided,
        "uncovered": [{"branch": format_oid(branch.oid), "objects": branch.objects} for branch in snmp.uncovered],
        "uncovered_cut": snmp.vendor_cut,
        "sample": asdict(snmp.sample),
    }


def _silent_json(profile: Profile) -> dict[str, Any]:
    return {"name": profile.name, "answered": False, "objects": [], "not_provided": []}


def _profile_json(reply: ProfileReport) -> dict[str, Any]:
    objects = [_object_json(each) for each in reply.objects if each.cells]
    return {"name": reply.profile.name, "answered": True, "objects": objects, "not_provided": reply.absent}


def _object_json(each: ObjectReport) -> dict[str, Any]:
    entry = each.entry
    return {
        "field": entry.field,
        "oid": format_oid(entry.oid),
        "confidence": entry.confidence,
        "source": entry.source,
        "cut": each.cut,
        "values": list(map(_cell_json, each.cells)),
    }


def _cell_json(cell: ProbedValue) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "index": format_oid(cell.index),
        "value": _value_json(cell.value) if cell.understood else None,
    }
    if not cell.understood:
        fields["raw"] = {"hex": cell.raw.hex()} if isinstance(cell.raw, bytes) else cell.raw
        fields["problem"] = cell.problem or value_text(cell.value)
    return fields


def _value_json(value: Value) -> Any:
    return asdict(value) if is_dataclass(value) else value


def _web_json(web: WebReport) -> dict[str, Any]:
    return {
        "fingerprint": web.fingerprint,
        "channels": None if web.channels is None else _asdicts(web.channels),
        "time_errors": _asdicts(web.time_errors),
        "utc_offset_s": web.utc_offset_s,
        "notes": list(web.notes),
    }


def _asdicts(rows: Iterable[Any]) -> list[dict[str, Any]]:
    return [asdict(row) for row in rows]
