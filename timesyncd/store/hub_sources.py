"""
The sources under which a hub's roll-ups of its fleet and jobs are stored. No configured source has such a name: names begin with a
letter or a digit.
"""

from __future__ import annotations

FLEET_SOURCE = "@fleet"


def job_source(job_id: str) -> str:
    return f"@job/{job_id}"
