"""What a training job imports: the standard library alone stands below it."""

from timesyncd.bound import ClockStatus, Interval, Reference
from timesyncd.client.alignment import Preflight, PreflightNode, preflight
from timesyncd.client.barrier import Barrier, Verdict
from timesyncd.client.clock import Clock
from timesyncd.client.job import Job
from timesyncd.client.past import Translation
from timesyncd.client.scales import GmNs, Moment, TaiNs, UtcNs
from timesyncd.client.waiting import Change, Waited
from timesyncd.joblink import Kind, Plan, Signals

__all__ = [
    "Barrier",
    "Change",
    "Clock",
    "ClockStatus",
    "GmNs",
    "Interval",
    "Job",
    "Kind",
    "Moment",
    "Plan",
    "Preflight",
    "PreflightNode",
    "Reference",
    "Signals",
    "TaiNs",
    "Translation",
    "UtcNs",
    "Verdict",
    "Waited",
    "preflight",
]
