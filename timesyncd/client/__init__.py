"""What a training job imports: the standard library alone stands below it."""

from timesyncd.bound import ClockStatus, Interval, Reference
from timesyncd.client.anchors import Anchors, record_anchors
from timesyncd.client.barrier import Barrier, Verdict
from timesyncd.client.clock import Clock
from timesyncd.client.fused_barrier import FusedBarrier
from timesyncd.client.job import Job
from timesyncd.client.local import LocalSignals
from timesyncd.client.past import ClockReading
from timesyncd.client.pauses import Pauses, gc_disabled
from timesyncd.client.preflight_check import PreflightNode, PreflightResult, preflight
from timesyncd.client.scales import GmNs, TaiNs, Timestamp, UtcNs
from timesyncd.client.slack import SchedFifo, Slack, SlackTask
from timesyncd.client.waiting import StatusChange, WaitResult
from timesyncd.errors import AlignmentError
from timesyncd.ipc.job_datagram import Kind, split_step, step_key, step_text
from timesyncd.ipc.job_segment import Method, Phase, Plan, Signals

__all__ = [
    "AlignmentError",
    "Anchors",
    "Barrier",
    "Clock",
    "ClockReading",
    "ClockStatus",
    "FusedBarrier",
    "GmNs",
    "Interval",
    "Job",
    "Kind",
    "LocalSignals",
    "Method",
    "Pauses",
    "Phase",
    "Plan",
    "PreflightNode",
    "PreflightResult",
    "Reference",
    "SchedFifo",
    "Signals",
    "Slack",
    "SlackTask",
    "StatusChange",
    "TaiNs",
    "Timestamp",
    "UtcNs",
    "Verdict",
    "WaitResult",
    "gc_disabled",
    "preflight",
    "record_anchors",
    "split_step",
    "step_key",
    "step_text",
]
