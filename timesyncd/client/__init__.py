"""What a training job imports: the standard library alone stands below it."""

from timesyncd.bound import ClockStatus, Interval, Reference
from timesyncd.client.anchors import Anchors, record_anchors
from timesyncd.client.barrier import Barrier, Verdict
from timesyncd.client.carried import CarriedBarrier
from timesyncd.client.clock import Clock
from timesyncd.client.job import Job
from timesyncd.client.local import Local
from timesyncd.client.past import Translation
from timesyncd.client.pauses import Pauses, held_garbage
from timesyncd.client.preflight_check import Preflight, PreflightNode, preflight
from timesyncd.client.scales import GmNs, TaiNs, Timestamp, UtcNs
from timesyncd.client.slack import Fifo, Slack, Work
from timesyncd.client.waiting import Change, Waited
from timesyncd.errors import AlignmentError
from timesyncd.ipc.job_datagram import Kind, split_step, step_key, step_text
from timesyncd.ipc.job_segment import Method, Phase, Plan, Signals

__all__ = [
    "AlignmentError",
    "Anchors",
    "Barrier",
    "CarriedBarrier",
    "Change",
    "Clock",
    "ClockStatus",
    "Fifo",
    "GmNs",
    "Interval",
    "Job",
    "Kind",
    "Local",
    "Method",
    "Pauses",
    "Phase",
    "Plan",
    "Preflight",
    "PreflightNode",
    "Reference",
    "Signals",
    "Slack",
    "TaiNs",
    "Timestamp",
    "Translation",
    "UtcNs",
    "Verdict",
    "Waited",
    "Work",
    "held_garbage",
    "preflight",
    "record_anchors",
    "split_step",
    "step_key",
    "step_text",
]
