"""What a training job imports. It needs nothing but the standard library."""

from timesyncd.bound import ClockStatus, Interval, Reason, Reference
from timesyncd.client.anchors import Anchors, record_anchors
from timesyncd.client.barrier import Barrier, BarrierReason, Verdict
from timesyncd.client.clock import Clock
from timesyncd.client.fused_barrier import FusedBarrier
from timesyncd.client.job import AlignmentReason, Job
from timesyncd.client.local import LocalSignals
from timesyncd.client.past import ClockReading, TranslationReason
from timesyncd.client.pauses import PauseReason, Pauses, gc_disabled
from timesyncd.client.phase import PhaseScheduler, StepDelay, StepDelayReason
from timesyncd.client.preflight_check import PreflightNode, PreflightReason, PreflightResult, preflight
from timesyncd.client.scales import GmNs, TaiNs, Timestamp, UtcNs
from timesyncd.client.slack import SchedFifo, Slack, SlackReason, SlackTask
from timesyncd.client.waiting import StatusChange, WaitResult
from timesyncd.errors import AlignmentError
from timesyncd.ipc.job_datagram import Kind, split_step, step_key, step_text
from timesyncd.ipc.job_segment import Method, Phase, Plan, Signals

__all__ = [
    "AlignmentError",
    "AlignmentReason",
    "Anchors",
    "Barrier",
    "BarrierReason",
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
    "PauseReason",
    "Pauses",
    "Phase",
    "PhaseScheduler",
    "Plan",
    "PreflightNode",
    "PreflightReason",
    "PreflightResult",
    "Reason",
    "Reference",
    "SchedFifo",
    "Signals",
    "Slack",
    "SlackReason",
    "SlackTask",
    "StatusChange",
    "StepDelay",
    "StepDelayReason",
    "TaiNs",
    "Timestamp",
    "TranslationReason",
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
