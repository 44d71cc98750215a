"""The doctor's facts of a healthy node, and what they are made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from timesyncd.cli.doctor.facts import (
    BrokerFacts,
    CertificateFacts,
    ConfigFacts,
    DaemonFacts,
    Facts,
    FileFacts,
    NotChecked,
    ServiceFacts,
    StoreFacts,
)
from timesyncd.clocks import NS_PER_S
from timesyncd.config import DEFAULT_PATH, parse
from timesyncd.driver import options_of
from timesyncd.findings.catalogue import CATALOGUE
from timesyncd.messages.fleet import HubState
from timesyncd.messages.node import FindingMessage, NodeState
from timesyncd.sample import KernelSample

NOW_NS = 1_800_000_000 * NS_PER_S
DAY_NS = 86_400 * NS_PER_S
CONFIG = {
    "node": {"name": "n1"},
    "source": [{"name": "ptp", "driver": "ptp4l"}],
    "store": {},
    "web": {},
    "mqtt": {"host": "broker", "hubs": ["h1"]},
}


def node(**changes: Any) -> NodeState:
    known = {
        "node": "n1", "incarnation": 1, "sequence": 1, "published_realtime_ns": NOW_NS, "age_ns": 0, "boot_id": "b",
        "time_namespace": 0, "status": "SYNCHRONIZED", "utc_status": "UNKNOWN", "since_realtime_ns": NOW_NS,
        "sources": [{"name": "ptp", "driver": "ptp4l", "reachable": True, "kind": "ptp"}],
    }  # fmt: skip
    return NodeState.model_validate(known | changes)


def finding(id: str, subject: str = "n1", **changes: Any) -> FindingMessage:
    kind = CATALOGUE[id]
    known = {
        "id": id, "severity": kind.severity, "subject": subject, "since_realtime_ns": NOW_NS, "until_realtime_ns": None,
        "evidence": "seen", "cause": kind.cause, "remedy": kind.remedy,
    }  # fmt: skip
    return FindingMessage.model_validate(known | changes)


def hub(name: str = "h1", age_s: int = 1, **changes: Any) -> HubState:
    known = {
        "node": name, "incarnation": 1, "sequence": 1, "published_realtime_ns": NOW_NS - age_s * NS_PER_S,
        "started_realtime_ns": 0, "primary": True, "nodes_live": 2, "nodes_known": 2, "nodes_expected": 2,
    }  # fmt: skip
    return HubState.model_validate(known | changes)


KERNEL = KernelSample(
    source="kernel", boottime_ns=1, frequency_ppb=1, maxerror_ns=1, esterror_ns=1, synchronized=True, leap="none",
    tai_offset_s=37, disciplines=("phc2sys",), undecided_disciplines=(), vm_disruptions=None,
)  # fmt: skip
RUN = Path("/run/timesyncd")
DAEMON = DaemonFacts("http://127.0.0.1:8319/", node(), (), (hub(),))


def config(**changes: Any) -> ConfigFacts:
    return ConfigFacts(DEFAULT_PATH, parse(CONFIG | changes, options_of, "t.toml"))


WELL = Facts(
    realtime_ns=NOW_NS,
    config=config(),
    folder=FileFacts(RUN, 0o755),
    segment=FileFacts(RUN / "clock", 0o644),
    segment_node=node(),
    job_socket=FileFacts(RUN / "job.sock", 0o666, listens=True),
    max_dgram_qlen=512,
    service=ServiceFacts("loaded", "active", "success", "enabled"),
    daemon=DAEMON,
    sources=NotChecked("the daemon polls them"),
    kernel=KERNEL,
    store=StoreFacts("/s", None, {"ptp": NOW_NS - NS_PER_S}, 10**11),
    broker=BrokerFacts("broker:1883"),
    certificates=(CertificateFacts("web.certificate", Path("/c.pem"), NOW_NS - DAY_NS, NOW_NS + 90 * DAY_NS),),
)
#: Without a daemon.
STOPPED: dict[str, Any] = {
    "daemon": NotChecked("Connection refused"),
    "job_socket": FileFacts(RUN / "job.sock", None),
    "service": ServiceFacts("loaded", "inactive", "success", "enabled"),
}
