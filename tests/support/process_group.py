"""A command whose processes end with it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence


def printed_by(command: Sequence[str], environ: Mapping[str, str]) -> str:
    """Its standard output, once it ended well; whatever happens, nothing that it started is left."""
    process = subprocess.Popen(
        command,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environ},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        printed, _ = process.communicate(timeout=300)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise

    assert process.returncode == 0
    return printed
