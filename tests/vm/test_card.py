"""The emulated network card: its clock is as good as the tests on it need."""

from __future__ import annotations

import re
from itertools import pairwise

from vm_lab import Lab
from vm_machine import MachineSpec

pytest_plugins = ["vm_fixtures"]

#: What the system clock and a busy host may add between two commands, in ns.
ALLOWED_JUMP_NS = 300_000
ALLOWED_RATE_ERROR_PPM = 10


def test_the_cards_clock_keeps_its_phase_and_takes_the_frequency_that_is_set(lab: Lab) -> None:
    """Setting the frequency up or down moves the clock at no time, and it runs at what was set."""
    network, _ = lab.cable("unused")
    machine = lab.machine(MachineSpec("card", (network,)))
    machine.wait_until_ready()
    seen = []
    with lab.measuring():
        for ppb in (0, 50_000, -50_000, 0):
            output = machine.run(f"phc_ctl -q /dev/ptp0 -- freq {ppb} cmp wait 2 cmp")
            first_ns, last_ns = map(int, re.findall(r"offset from CLOCK_REALTIME is (-?\d+)ns", output))
            seen.append((ppb, first_ns, last_ns))

    jumps = [abs(new[1] - old[2]) for old, new in pairwise(seen)]
    rates_ppm = [(last_ns - first_ns) / 2_000 + ppb / 1_000 for ppb, first_ns, last_ns in seen]
    assert max(jumps) < ALLOWED_JUMP_NS, seen
    assert max(rates_ppm) - min(rates_ppm) < ALLOWED_RATE_ERROR_PPM, seen
