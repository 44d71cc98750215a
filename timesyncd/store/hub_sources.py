"""
The sources under which a hub's roll-ups of its fleet, racks and jobs are stored. No configured source has such a name: names begin with a
letter or a digit.
"""

from __future__ import annotations

FLEET_SOURCE = "@fleet"
RACK_PREFIX = "@rack/"


def rack_source(place: str) -> str:
    """Of the nodes of one place; "": of those without a place."""
    return f"{RACK_PREFIX}{place}"


def job_source(job_id: str) -> str:
    return f"@job/{job_id}"
