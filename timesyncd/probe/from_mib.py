"""
A MIB -> the skeleton of a profile. Pure.

A field is guessed only where the object's name leaves no doubt and its type fits; the rest is written as comments for a person who
knows the grandmaster. Everything is unproven until somebody has seen it served.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from os.path import commonprefix

from timesyncd.drivers.timeprovider._decoders import KINDS
from timesyncd.drivers.timeprovider._profiles import ALLOWED_WORDS, FIELDS, accepts
from timesyncd.probe.mib import Mib, MibNotification, MibObject, Syntax
from timesyncd.probe.suggestion import array, inline, key, quoted
from timesyncd.snmp import Oid, format_oid

#: Names that end so leave no doubt: lower case, without anything between the words.
_ENDINGS = {
    "clockstate": "clock_state", "clockclass": "clock_class", "clockaccuracy": "clock_accuracy",
    "clockidentity": "clock_identity", "offsetscaledlogvariance": "offset_scaled_log_variance",
    "priority1": "priority1", "priority2": "priority2", "domainnumber": "domain", "stepsremoved": "steps_removed",
    "currentutcoffset": "utc_offset_s", "currentutcoffsetvalid": "utc_offset_valid", "leap59": "leap59", "leap61": "leap61",
    "timetraceable": "time_traceable", "frequencytraceable": "frequency_traceable", "timesource": "time_source",
    "serialnumber": "serial", "serialnum": "serial", "firmwareversion": "firmware", "firmwarerevision": "firmware",
    "modelname": "model", "oscillatortype": "oscillator", "ntpstratum": "ntp_stratum", "phaseoffset": "phase_offset_ns",
}  # fmt: skip

#: Read at each poll.
_STATE = ("clock_state", "clock_class", "clock_accuracy", "phase_offset_ns")

#: What vendors call the states of a clock, where the word is the neutral one.
_STATES = {
    "freerun": "freerun", "freerunning": "freerun", "holdover": "holdover", "locked": "locked", "phaselocked": "locked",
    "acquiring": "acquiring", "warmup": "warmup", "warmingup": "warmup", "fault": "fault", "failed": "fault",
    "fail": "fault", "unknown": "unknown", "holdoveroutofspec": "holdover_out_of_spec",
}  # fmt: skip

_ROLE_ENDINGS = {
    "module": ("module", "moduleid"), "id": ("alarmid", "eventid"), "index": ("alarmindex", "eventindex"),
    "severity": ("severity",), "at": ("datetime", "dateandtime", "timestamp"), "text": ("text", "description", "message"),
    "sequence": ("sequence", "sequencenumber", "seqnum"),
}  # fmt: skip

#: Of fields that an enumeration or a text may hold as well.
_OWN_DECODERS = {
    "clock_class": "clock_class", "clock_accuracy": "clock_accuracy", "offset_scaled_log_variance": "low_16_bits",
    "time_source": "integer", "ntp_stratum": "leading_integer",
}  # fmt: skip
_ALSO_TEXT = ("clock_class", "clock_accuracy", "ntp_stratum")

_INTEGERS = ("Integer32", "INTEGER", "Unsigned32", "Gauge32", "Counter32", "Counter64", "Gauge", "Counter")
_BY_NAME = {"TruthValue": "truth", "TimeTicks": "ticks", "OBJECT IDENTIFIER": "oid"}
_NANOSECONDS = ("ns", "nanosecond", "nanoseconds")
_WIDTH = 110


@dataclass(frozen=True, slots=True)
class Guess:
    """`values`: an enumeration in the field's words."""

    field: str
    decoder: str
    values: Mapping[int, str]


def skeleton(mib: Mib, name: str | None = None) -> str:
    """TOML that loads as soon as one object has its field; with a guessed one, as it is."""
    profile = name or re.sub(r"[^a-z0-9]+", "-", mib.module.lower()).strip("-")
    lines = [
        f"# Made from {mib.module}: a skeleton. Give every object that you want read a field, and take its # away.",
        *_fields_told(),
        f"name = {quoted(profile)}",
        f"title = {quoted(mib.module)}",
    ]
    if mib.objects:
        lines.append(f"proved_by = {array([format_oid(proof([each.oid for each in mib.objects]))])}")
    for each in mib.objects:
        lines += ["", *_object(mib.module, each)]
    for notification in mib.notifications:
        lines += ["", *_notification(mib.module, notification)]
    return "\n".join(lines) + "\n"


def proof(oids: Sequence[Oid]) -> Oid:
    """The smallest subtree that holds them all."""
    return tuple(commonprefix([oid[:-1] for oid in oids]))


def _fields_told() -> list[str]:
    """The fields by the kind of value that they take, so that a person need not look them up."""
    lines = []
    for kind in dict.fromkeys(FIELDS.values()):
        names = ", ".join(field for field, taken in FIELDS.items() if taken is kind)
        decoders = ", ".join(name for name, made in KINDS.items() if made is kind)
        lines += [f"#   {kind.__name__} (of {decoders}):", *_wrapped(names)]
    return ["# Fields, by what they take and the decoders that make it; those of a list need an index:", *lines]


def _wrapped(text: str) -> list[str]:
    return [f"#     {line.strip()}" for line in re.findall(rf".{{1,{_WIDTH}}}(?:,|$)", text)]


def _object(module: str, each: MibObject) -> list[str]:
    guessed = guess(each)
    decoder = guessed.decoder if guessed else decoder_of(each.syntax, each.unit)
    values = guessed.values if guessed else each.syntax.values
    written = [f"# {_shortened(each)}", "[[object]]", f'oid = "{format_oid(each.oid)}"']
    written += [f"index = {array(each.index)}"] if each.index else []
    written += ['group = "state"'] if guessed and guessed.field in _STATE else []
    written.append(f"decoder = {quoted(decoder)}" if decoder else f'decoder = "?"    # {each.syntax.names[0]}')
    written += [f"values = {_numbered(values)}"] if decoder == "enum" else []
    written += [f"unit = {quoted(each.unit)}"] if each.unit else []
    written.append(f"field = {quoted(guessed.field if guessed else '?')}")
    written += ['confidence = "unproven"', f"source = {quoted(f'{module} {each.name}')}"]
    return written if guessed else [line if line.startswith("#") else f"# {line}" for line in written]


def _numbered(values: Mapping[int, str]) -> str:
    return inline({str(number): label for number, label in values.items()})


def _shortened(each: MibObject) -> str:
    text = "".join(c if c.isprintable() else " " for c in f"{each.name}: {each.description}")
    return text if len(text) <= _WIDTH else text[: _WIDTH - 3] + "..."


def decoder_of(syntax: Syntax, unit: str | None = None) -> str | None:
    """None: none of the decoders reads such a value (BITS, IpAddress, a type that is not known)."""
    for name in syntax.names:
        if name in _BY_NAME:
            return _BY_NAME[name]
        if "clockidentity" in name.lower():
            return "identity"
        if "clocktimeinterval" in name.lower():
            return "time_interval"
    if syntax.base in _INTEGERS:
        return "enum" if syntax.values else "integer"
    if syntax.base == "OCTET STRING" and "IpAddress" not in syntax.names:
        return "nanoseconds" if _is_ns(unit) else "text"
    return None


def guess(each: MibObject) -> Guess | None:
    """Where the name leaves no doubt, the type fits, and every word of an enumeration is one of the field's."""
    bare = _bare(each.name)
    field = next((field for ending, field in _ENDINGS.items() if bare.endswith(ending)), None)
    decoder = _decoder_for(field, each)
    if (
        field is None
        or decoder is None
        or not accepts(field, decoder)
        or (field.endswith("_ns") and not _is_ns(each.unit))
    ):
        return None
    values = each.syntax.values
    if field in ALLOWED_WORDS:
        values = {number: _STATES.get(_bare(label), "?") for number, label in values.items()}
        if decoder != "enum" or not set(values.values()) <= ALLOWED_WORDS[field]:
            return None
    return Guess(field, decoder, values)


def _decoder_for(field: str | None, each: MibObject) -> str | None:
    """Some fields have a decoder of their own, which reads what grandmasters send there."""
    plain = decoder_of(each.syntax, each.unit)
    if field == "clock_identity":
        return "identity" if plain == "text" and each.syntax.size in (8, None) else plain
    if field in _OWN_DECODERS and plain in ("integer", "enum", "text"):
        return _OWN_DECODERS[field] if plain != "text" or field in _ALSO_TEXT else None
    return plain


def _is_ns(unit: str | None) -> bool:
    return (unit or "").lower() in _NANOSECONDS


def _bare(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _notification(module: str, notification: MibNotification) -> list[str]:
    """An alarm where its name says so; else an event, which is never raised."""
    kind = "alarm" if "alarm" in notification.name.lower() else "event"
    roles = dict(_roles(notification.variables))
    severity = roles.get("severity")
    lines = [
        "[[notification]]",
        f'oid = "{format_oid(notification.oid)}"',
        f"kind = {quoted(kind)}",
        f"text = {quoted(notification.name)}",
    ]
    if severity is not None and severity.syntax.values:
        lowered = {number: label.lower() for number, label in severity.syntax.values.items()}
        lines.append(f"severities = {_numbered(lowered)}")
    lines += ['confidence = "unproven"', f"source = {quoted(f'{module} {notification.name}')}"]
    if roles:
        lines.append("[notification.variables]")
        lines += [f"{key(role)} = {quoted(format_oid(each.oid))}" for role, each in roles.items()]
    unclear = [each for each in notification.variables if each not in roles.values()]
    return lines + [f"# ? = {quoted(format_oid(each.oid))}    # {each.name}" for each in unclear]


def _roles(variables: Iterable[MibObject]) -> Iterable[tuple[str, MibObject]]:
    """The role of each variable whose name leaves no doubt; a role that fits two variables is given to neither."""
    found = [
        (role, each) for each in variables for role, ends in _ROLE_ENDINGS.items() if _bare(each.name).endswith(ends)
    ]
    for role in _ROLE_ENDINGS:
        holders = [each for found_role, each in found if found_role == role]
        if len(holders) == 1 and sum(each is holders[0] for _, each in found) == 1:
            yield role, holders[0]
