"""
What nearly every MIB imports, in our own words and no more of it than that: names, numbers and types (RFC 2578, 2579, 2580,
2863, 3411, 3418, 4001, 6933). Modules that a `--source` folder holds go before these.
"""

from __future__ import annotations

_TC = 'TEXTUAL-CONVENTION STATUS current DESCRIPTION "" SYNTAX'


def _module(name: str, imports: str, *declarations: str) -> str:
    body = "\n".join(declarations)
    return f"{name} DEFINITIONS ::= BEGIN\n{f'IMPORTS {imports};' if imports else ''}\n{body}\nEND\n"


BASE_MIBS = {
    # Of SMIv1; pysmi looks for what they say in the modules below.
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
