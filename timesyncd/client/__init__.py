"""What a training job imports: the standard library alone stands below it."""

from timesyncd.bound import ClockStatus, Interval, Reference
from timesyncd.client.barrier import Barrier, Verdict
from timesyncd.client.clock import Clock
from timesyncd.client.job import Job
from timesyncd.joblink import Kind, Plan, Signals

__all__ = ["Barrier", "Clock", "ClockStatus", "Interval", "Job", "Kind", "Plan", "Reference", "Signals", "Verdict"]
