"""
The clock alone: a stamp that is surely past when others see it, a start at one instant, and when this process began.

    python examples/clock.py [--runtime-dir FOLDER]
"""

import argparse
import time

from timesyncd.client import Clock, GmNs

began_ns = time.perf_counter_ns()
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--runtime-dir")
clock = Clock(parser.parse_args().runtime_dir)

now = clock.gm_now()
if now.earliest is None or now.latest is None:
    raise SystemExit(f"no time to trust: {clock.reason()}")
print(f"the grandmaster's time is known to +- {(now.latest - now.earliest) // 2} ns ({now.status.name})")

stamp = GmNs(now.latest)
committed = clock.wait_after(stamp, timeout_s=1)  # whoever stamps after this, on any node, gets a later moment
print(f"the stamp has surely passed: {committed.reached}")

started = clock.wait_until(stamp + 50_000_000, timeout_s=1)  # every node that was told this moment starts now
print(f"started {started.lateness_ns} ns after the moment agreed upon")

began, reason = clock.translate(perf_counter_ns=began_ns)  # from this machine's clock to the one that all nodes share
print(f"this process began at {began.earliest} to {began.latest} {reason}")
