"""A process: the simulated ptp4l at PATH, with 2^-LOG Syncs a second, until its end."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from timesyncd.simulation.bed.simulated_ptp4l import SimulatedPtp4l


async def serve(path: Path, log_sync_interval: int) -> None:
    async with SimulatedPtp4l(path, 0, is_traceable=True, log_sync_interval=log_sync_interval):
        print(flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), int(sys.argv[2])))
