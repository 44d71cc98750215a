"""
A MIB's text -> its objects and notifications, types resolved. Nothing is fetched from anywhere.

What nearly every MIB imports, in our own words and no more of it than that: names, numbers and types (RFC 2578, 2579, 2580,
2863, 3411, 3418, 4001, 6933). Modules that a `--source` folder holds go before these.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pysmi.codegen.jsondoc import JsonCodeGen
from pysmi.compiler import MibCompiler
from pysmi.error import PySmiError
from pysmi.parser.dialect import smi_v1_relaxed
from pysmi.parser.smi import parserFactory
from pysmi.reader.callback import CallbackReader
from pysmi.reader.localfile import FileReader
from pysmi.writer.callback import CallbackWriter

from timesyncd.client.files import read_file
from timesyncd.errors import ConfigError, Malformed
from timesyncd.snmp import Oid, format_oid, parse_oid

_TC = 'TEXTUAL-CONVENTION STATUS current DESCRIPTION "" SYNTAX'


def _module(name: str, imports: str, *declarations: str) -> str:
    body = "\n".join(declarations)
    return f"{name} DEFINITIONS ::= BEGIN\n{f'IMPORTS {imports};' if imports else ''}\n{body}\nEND\n"


BASE_MIBS = {
    # Of SMIv1; pysmi takes their definitions from the modules below.
    **{name: _module(name, "") for name in ("RFC1065-SMI", "RFC1155-SMI", "RFC1158-MIB", "RFC1213-MIB", "RFC-1212", "RFC-1215")},
    "SNMPv2-SMI": _module(
        "SNMPv2-SMI",
        "",
        *(
            f"{name} OBJECT IDENTIFIER ::= {{ {parent} }}"
            for name, parent in (
                ("org", "iso 3"), ("dod", "org 6"), ("internet", "dod 1"), ("directory", "internet 1"),
                ("mgmt", "internet 2"), ("mib-2", "mgmt 1"), ("transmission", "mib-2 10"),
                ("experimental", "internet 3"), ("private", "internet 4"), ("enterprises", "private 1"),
                ("security", "internet 5"), ("snmpV2", "internet 6"), ("snmpDomains", "snmpV2 1"),
                ("snmpProxys", "snmpV2 2"), ("snmpModules", "snmpV2 3"), ("zeroDotZero", "0 0"),
            )
        ),
        "Integer32 ::= INTEGER (-2147483648..2147483647)",
        "IpAddress ::= [APPLICATION 0] IMPLICIT OCTET STRING (SIZE (4))",
        "Counter32 ::= [APPLICATION 1] IMPLICIT INTEGER (0..4294967295)",
        "Gauge32 ::= [APPLICATION 2] IMPLICIT INTEGER (0..4294967295)",
        "Unsigned32 ::= [APPLICATION 2] IMPLICIT INTEGER (0..4294967295)",
        "TimeTicks ::= [APPLICATION 3] IMPLICIT INTEGER (0..4294967295)",
        "Opaque ::= [APPLICATION 4] IMPLICIT OCTET STRING",
        "Counter64 ::= [APPLICATION 6] IMPLICIT INTEGER (0..18446744073709551615)",
    ),
    "SNMPv2-CONF": _module("SNMPv2-CONF", ""),
    "SNMPv2-TC": _module(
        "SNMPv2-TC",
        "TimeTicks FROM SNMPv2-SMI",
        *(f"{name} ::= {_TC} OCTET STRING" for name in ("DisplayString", "PhysAddress", "MacAddress", "DateAndTime")),
        *(f"{name} ::= {_TC} OBJECT IDENTIFIER" for name in ("AutonomousType", "VariablePointer", "RowPointer", "TDomain")),
        *(f"{name} ::= {_TC} INTEGER" for name in ("TestAndIncr", "TimeInterval")),
        f"TAddress ::= {_TC} OCTET STRING",
        f"TimeStamp ::= {_TC} TimeTicks",
        f"TruthValue ::= {_TC} INTEGER {{ true(1), false(2) }}",
        f"RowStatus ::= {_TC} INTEGER {{ active(1), notInService(2), notReady(3), createAndGo(4), createAndWait(5), destroy(6) }}",
        f"StorageType ::= {_TC} INTEGER {{ other(1), volatile(2), nonVolatile(3), permanent(4), readOnly(5) }}",
    ),
    "SNMPv2-MIB": _module(
        "SNMPv2-MIB",
        "mib-2, snmpModules FROM SNMPv2-SMI",
        "system OBJECT IDENTIFIER ::= { mib-2 1 }",
        "snmpMIB OBJECT IDENTIFIER ::= { snmpModules 1 }",
        "snmpTraps OBJECT IDENTIFIER ::= { snmpMIB 1 5 }",
    ),
    "SNMP-FRAMEWORK-MIB": _module(
        "SNMP-FRAMEWORK-MIB",
        "",
        *(f"{name} ::= {_TC} OCTET STRING" for name in ("SnmpAdminString", "SnmpEngineID")),
    ),
    "INET-ADDRESS-MIB": _module(
        "INET-ADDRESS-MIB",
        "Unsigned32 FROM SNMPv2-SMI",
        f"InetAddressType ::= {_TC} INTEGER {{ unknown(0), ipv4(1), ipv6(2), ipv4z(3), ipv6z(4), dns(16) }}",
        f"InetAddress ::= {_TC} OCTET STRING",
        *(f"{name} ::= {_TC} Unsigned32" for name in ("InetAddressPrefixLength", "InetPortNumber")),
    ),
    "IF-MIB": _module(
        "IF-MIB",
        "mib-2, Integer32 FROM SNMPv2-SMI",
        "interfaces OBJECT IDENTIFIER ::= { mib-2 2 }",
        "ifEntry OBJECT IDENTIFIER ::= { interfaces 2 1 }",
        "ifIndex OBJECT IDENTIFIER ::= { ifEntry 1 }",
        *(f"{name} ::= {_TC} Integer32" for name in ("InterfaceIndex", "InterfaceIndexOrZero")),
    ),
    "ENTITY-MIB": _module(
        "ENTITY-MIB",
        "mib-2, Integer32 FROM SNMPv2-SMI",
        "entityMIB OBJECT IDENTIFIER ::= { mib-2 47 }",
        "entPhysicalEntry OBJECT IDENTIFIER ::= { entityMIB 1 1 1 1 }",
        "entPhysicalIndex OBJECT IDENTIFIER ::= { entPhysicalEntry 1 }",
        *(f"{name} ::= {_TC} Integer32" for name in ("PhysicalIndex", "PhysicalIndexOrZero")),
    ),
}  # fmt: skip


Document = dict[str, dict[str, Any]]

_HEAD = re.compile(r"^\s*([A-Z][A-Za-z0-9-]*)\s*(?:\{[^}]*\}\s*)?DEFINITIONS\s*::=\s*BEGIN", re.MULTILINE)
_READABLE = ("read-only", "read-write", "read-create")
#: Larger than any MIB there is.
LARGEST_FILE = 16 << 20


@dataclass(frozen=True, slots=True)
class Syntax:
    """`names` are the type's, from the object's own to the base type; `values` an enumeration's, `size` when fixed."""

    names: tuple[str, ...]
    values: dict[int, str]
    size: int | None

    @property
    def base(self) -> str:
        return self.names[-1]


@dataclass(frozen=True, slots=True)
class MibObject:
    """A scalar or a column that can be read. `index` names what a column's rows are indexed by."""

    name: str
    oid: Oid
    index: tuple[str, ...]
    syntax: Syntax
    unit: str | None
    description: str


@dataclass(frozen=True, slots=True)
class MibNotification:
    name: str
    oid: Oid
    variables: tuple[MibObject, ...]


@dataclass(frozen=True, slots=True)
class Mib:
    """`not_found`: imported modules that were not found; what only they define is unknown."""

    module: str
    objects: tuple[MibObject, ...]
    notifications: tuple[MibNotification, ...]
    not_found: tuple[str, ...]


def compiled(path: Path, source: Path | None) -> Mib:
    """
    `source`: a folder of MIBs that this one imports. Raises ConfigError when a module that it needs is not found, Malformed when
    the file is no MIB.
    """
    text = _read(path)
    found = _HEAD.search(text)
    if found is None:
        raise Malformed(f"{path}: no MIB: a line as ACME-MIB DEFINITIONS ::= BEGIN is wanted")
    if source is not None and not os.path.isdir(source):
        raise ConfigError(f"--source {source}: no such folder")
    documents, not_found = _compile(found[1], text, source, path)
    return _Reader(documents).mib(found[1], not_found)


def _read(path: Path) -> str:
    try:
        return read_file(path, LARGEST_FILE).decode(errors="replace")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error


def _compile(module: str, text: str, source: Path | None, path: Path) -> tuple[dict[str, Document], tuple[str, ...]]:
    documents: dict[str, Document] = {}
    not_found: list[str] = []

    def known(name: str, _: object) -> str:
        """A missing module counts as empty: where only its types are missing, the rest can still be resolved."""
        if name not in BASE_MIBS:
            not_found.append(name)
        return BASE_MIBS.get(name, f"{name} DEFINITIONS ::= BEGIN\nEND\n")

    writer = CallbackWriter(lambda name, data, _: documents.__setitem__(name, json.loads(data)))
    compiler = MibCompiler(_parser(), JsonCodeGen(), writer)
    compiler.add_sources(CallbackReader(lambda name, _: text if name == module else None))
    if source is not None:
        compiler.add_sources(FileReader(str(source), recursive=False))
    compiler.add_sources(CallbackReader(known))
    try:
        done = compiler.compile(module, genTexts=True)
    except (PySmiError, RecursionError) as error:
        raise Malformed(f"{path}: {_one_line(error)}") from error
    for name, status in done.items():
        if status == "failed":
            raise _failure(path, name, status.error, not_found)
    return documents, tuple(sorted(not_found))


@cache
def _parser() -> Any:
    """Its tables take most of a second to make."""
    return parserFactory(**smi_v1_relaxed)()


def _failure(path: Path, module: str, error: Exception, not_found: list[str]) -> ConfigError | Malformed:
    needed = re.search(r'in module "([^"]+)"', str(error))
    if needed is not None and (needed[1] in not_found or needed[1] in BASE_MIBS):
        return ConfigError(
            f"{path}: needs {needed[1]}, which was not found: name a folder that contains it with --source"
        )
    return Malformed(f"{path}: {module} is not understood: {_one_line(error)}")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


class _Reader:
    def __init__(self, documents: dict[str, Document]) -> None:
        self._documents = documents

    def mib(self, module: str, not_found: tuple[str, ...]) -> Mib:
        document = self._documents[module]
        objects = sorted(self._objects(module), key=lambda each: each.oid)
        notifications = [
            self._notification(node) for node in document.values() if node.get("class") == "notificationtype"
        ]
        return Mib(module, tuple(objects), tuple(sorted(notifications, key=lambda each: each.oid)), not_found)

    def _objects(self, module: str) -> Iterator[MibObject]:
        for node in self._documents[module].values():
            is_value = node.get("class") == "objecttype" and node.get("nodetype") in ("scalar", "column")
            if is_value and node.get("maxaccess") in _READABLE:
                yield self._object(module, node)

    def _object(self, module: str, node: dict[str, Any]) -> MibObject:
        oid = _oid(node)
        index = self._index(module, oid[:-1]) if node["nodetype"] == "column" else ()
        syntax = self._syntax(module, node["syntax"])
        return MibObject(node["name"], oid, index, syntax, node.get("units"), node.get("description", ""))

    def _index(self, module: str, row: Oid) -> tuple[str, ...]:
        """Of the table whose rows have this OID; a table that augments another is indexed as that one is."""
        node = next(
            (
                each
                for each in self._documents[module].values()
                if each.get("nodetype") == "row" and each["oid"] == format_oid(row)
            ),
            None,
        )
        while node is not None and "augmention" in node:
            module = self._home(module, node["augmention"]["object"])
            node = self._documents.get(module, {}).get(node["augmention"]["object"])
        indices = [] if node is None else node.get("indices", [])
        return tuple(index["object"] for index in indices) or ("index",)

    def _home(self, module: str, symbol: str) -> str:
        """The module that a symbol comes from."""
        imports = self._documents[module].get("imports", {})
        return next((name for name, symbols in imports.items() if name != "class" and symbol in symbols), module)

    def _syntax(self, module: str, syntax: dict[str, Any]) -> Syntax:
        names: list[str] = []
        values: dict[int, str] = {}
        size = None
        while True:
            name, limits = str(syntax["type"]), syntax.get("constraints", {})
            values = values or {number: label for label, number in limits.get("enumeration", {}).items()}
            size = size if size is not None else _fixed(limits)
            if name in names:
                break
            names.append(name)
            module = self._home(module, name)
            declared = self._documents.get(module, {}).get(name, {})
            if "bits" in syntax or not isinstance(declared.get("type"), dict):
                break
            syntax = declared["type"]
        return Syntax(tuple(names), dict(sorted(values.items())), size)

    def _notification(self, node: dict[str, Any]) -> MibNotification:
        variables = []
        for each in node.get("objects", []):
            document = self._documents.get(each["module"], {}).get(each["object"], {})
            if document.get("class") == "objecttype" and "syntax" in document:
                variables.append(self._object(each["module"], document))
        return MibNotification(node["name"], _oid(node), tuple(variables))


def _fixed(limits: dict[str, Any]) -> int | None:
    sizes = limits.get("size", [])
    return int(sizes[0]["min"]) if len(sizes) == 1 and sizes[0]["min"] == sizes[0]["max"] else None


def _oid(node: dict[str, Any]) -> Oid:
    try:
        return parse_oid(node["oid"])
    except ValueError as error:
        raise Malformed(f"{node['name']}: {node['oid']} is no place for an object") from error
