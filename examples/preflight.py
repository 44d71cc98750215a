"""
Begin only when the clocks of all nodes agree: what a launcher asks before it starts the ranks.

    python examples/preflight.py URL NODE [NODE ...]
"""

import sys

from timesyncd.client import preflight

url, *nodes = sys.argv[1:]
answer = preflight(nodes=nodes, max_alignment_ns=1_000, timeout_s=30, url=url)  # the token is TIMESYNCD_TOKEN's
if not answer.ok:
    raise SystemExit(f"not started: {answer.reason}")
print(f"the clocks of {len(answer.nodes)} nodes agree within {answer.alignment_ns} ns")
