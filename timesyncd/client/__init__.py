"""What a training job imports: the standard library alone stands below it."""

from timesyncd.bound import ClockStatus, Interval, Reference
from timesyncd.client.clock import Clock

__all__ = ["Clock", "ClockStatus", "Interval", "Reference"]
