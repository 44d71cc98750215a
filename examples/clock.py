"""
The clock alone: a commit wait, a start at the same time on all nodes, and the time at which this process began.

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
    raise SystemExit(f"the clock is not trusted: {clock.reason()}")
print(f"the grandmaster's time is known to +- {(now.latest - now.earliest) // 2} ns ({now.status.name})")

stamp = GmNs(now.latest)
committed = clock.wait_after(stamp, timeout_s=1)  # a timestamp that any node takes after this is later
print(f"the timestamp has certainly passed: {committed.reached}")

started = clock.wait_until(stamp + 50_000_000, timeout_s=1)  # every node that waits for the same timestamp starts now
print(f"started {started.lateness_ns} ns after the agreed timestamp")

began = clock.translate(perf_counter_ns=began_ns)  # from this machine's clock to the clock that all nodes share
print(f"this process began between {began.interval.earliest} and {began.interval.latest} {began.reason}")
