"""The sizes of gradient buckets that an audit suggests, as what DistributedDataParallel is made with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def bucket_options(report: Path | str) -> dict[str, Any]:
    """
    `bucket_cap_mb`, or `bucket_cap_mb_list` where the sizes differ, of an audit's report.json; empty where it suggests none. Every rank has to
    read the same report. Raises ValueError: there is none, or it tells nothing of buckets.
    """
    try:
        told = json.loads(Path(report).read_text(encoding="utf-8"))
        caps = None if told["buckets"] is None else told["buckets"]["caps_mib"]
    except OSError as error:
        raise ValueError(f"{report}: cannot be read: {error.strerror or error}; run the audit first") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{report}: this is no report.json of `timesyncd audit`") from error
    return _options(report, caps)


def _options(report: Path | str, caps: object) -> dict[str, Any]:
    if caps is None:
        return {}
    if not isinstance(caps, list) or not caps or not all(isinstance(cap, int | float) and cap > 0 for cap in caps):
        raise ValueError(f"{report}: buckets.caps_mib has to be a list of sizes above 0, not {caps!r}")
    return {"bucket_cap_mb": caps[0]} if len(caps) == 1 else {"bucket_cap_mb_list": caps}
