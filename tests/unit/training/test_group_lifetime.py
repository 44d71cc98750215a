"""A callback in a thread of a process group never holds the group's last reference: torch would end the process there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

#: The thread of the group is held up in a callback while the script lets go of everything.
SCRIPT = """
import gc, sys, time
import torch
import torch.distributed as dist
from timesyncd.training.compression import compressor
from timesyncd.training.policy.text import parse_policy
from timesyncd.training.torch.averaging import Averaging, DenseReducer, make_chunks

def use(how, tensors, hold_up):
    group = dist.new_group([0], backend="gloo")
    if how == "begin":
        averaging = Averaging(tensors, DenseReducer(group))
        averaging.begin()
        future = averaging._futures[-1]
        future.add_done_callback(hold_up)
        averaging.finish()
        return
    reducer = compressor(parse_policy("local_sgd(h=2) + " + how.removesuffix(" dense")).compression, group, tensors)
    (chunk,) = make_chunks(tensors)
    chunk.fill()
    chunk.anchor = torch.zeros(1024)
    future = (reducer.dense if how.endswith("dense") else reducer.hook)(chunk)
    future.add_done_callback(hold_up)
    future.wait()

for number, how in enumerate(sys.argv[2:]):
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/{number}", rank=0, world_size=1)
    use(how, [torch.ones(1024)], lambda _: time.sleep(0.3))
    dist.destroy_process_group()
    gc.collect()
    time.sleep(0.4)
    print(how)
"""

HOW = ("begin", "topk", "topk(ratio=0.1)", "int8", "int8 dense", "fp16", "visible", "e3m0")


def test_the_last_callback_does_not_end_the_process(tmp_path: Path) -> None:
    """The script lets go of the group while its thread still runs a callback, as happens on a loaded machine."""
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), *HOW]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stdout.splitlines()) == (0, list(HOW)), done.stderr
