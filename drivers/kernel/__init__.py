"""The kernel's own account of the system clock: the driver, and the frequency that is applied now."""

from timesyncd.drivers.kernel._machine import frequency_ppb as system_clock_frequency_ppb

__all__ = ["system_clock_frequency_ppb"]
