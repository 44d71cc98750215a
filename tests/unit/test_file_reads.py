"""A file that a user or another process names is read by client.files: a FIFO has no end, and a device is never whole."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]

_KERNEL = "of the kernel, in /proc, /sys or /dev"
_PACKAGE = "of this installation"
_OWN = "made by this process, or by the daemon in its own folder"
_NO_WAIT = "opened with O_NONBLOCK, and looked at before it is read"
_WRITTEN = "opened to be written"

#: Why these functions read by other means.
ALLOWED = {
    ("drivers/kernel/_disciplines.py", "_head"): _KERNEL,
    ("drivers/kernel/_disciplines.py", "_is_in_container"): _KERNEL,
    ("drivers/kernel/_disciplines.py", "_text"): _KERNEL,
    ("drivers/kernel/_disciplines.py", "find_processes"): _KERNEL,
    ("drivers/kernel/kernel.py", "disruption_marker"): _KERNEL,
    ("drivers/phc/_device.py", "__init__"): _KERNEL,
    ("drivers/phc/_device.py", "_active_slave"): _KERNEL,
    ("drivers/phc/_device.py", "_carrier"): _KERNEL,
    ("drivers/ptp4l/_socket.py", "queue_length"): _KERNEL,
    ("timesyncd/audit/blame_page.py", "blame_html"): _PACKAGE,
    ("timesyncd/audit/html.py", "html"): _PACKAGE,
    ("timesyncd/audit/script.py", "_terminal"): _KERNEL,
    ("timesyncd/build.py", "_checked_out_commit"): _PACKAGE,
    ("timesyncd/build.py", "_installed_commit"): _PACKAGE,
    ("timesyncd/cli/claim.py", "_claim"): _OWN,
    ("timesyncd/cli/doctor/facts.py", "max_dgram_qlen"): _KERNEL,
    ("timesyncd/cli/replay.py", "_opened"): "a pipe may be replayed as it grows",
    ("timesyncd/cli/run.py", "_first_line"): _KERNEL,
    ("timesyncd/cli/schemas.py", "main"): _PACKAGE,
    ("timesyncd/client/anchors.py", "_open"): _WRITTEN,
    ("timesyncd/client/files.py", "_open_without_waiting"): _NO_WAIT,
    ("timesyncd/client/files.py", "open_file"): _NO_WAIT,
    ("timesyncd/client/files.py", "read_file"): _NO_WAIT,
    ("timesyncd/client/network.py", "addresses"): _KERNEL,
    ("timesyncd/client/network.py", "interface_counters"): _KERNEL,
    ("timesyncd/client/recorder.py", "_open"): _WRITTEN,
    ("timesyncd/clocks.py", "boot_id"): _KERNEL,
    ("timesyncd/daemon/memory.py", "_resident_pages"): _KERNEL,
    ("timesyncd/ipc/clockbound.py", "_map"): _NO_WAIT,
    ("timesyncd/ipc/clockbound.py", "read_segment"): _NO_WAIT,
    ("timesyncd/ipc/seqlock.py", "_map"): _NO_WAIT,
    ("timesyncd/kubernetes/api.py", "_authorization"): "the kubelet's mount",
    ("timesyncd/store/damage.py", "_wal_pages"): _OWN,
    ("timesyncd/store/damage.py", "read"): _NO_WAIT,
    ("timesyncd/store/salvage.py", "graft_schema"): _OWN,
    ("timesyncd/web/app.py", "_login_file"): _PACKAGE,
    ("timesyncd/web/auth.py", ""): _PACKAGE,
    ("timesyncd/web/page_files.py", "assets"): _PACKAGE,
    ("timesyncd/web/page_files.py", "document"): _PACKAGE,
}


def reads() -> Iterator[tuple[str, str]]:
    """The file and the function of each."""
    for folder in ("timesyncd", "drivers"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = str(path.relative_to(ROOT))
            if not name.startswith("timesyncd/simulation/bed/"):
                yield from ((name, function) for function in _functions_that_read(ast.parse(path.read_bytes())))


def _functions_that_read(tree: ast.AST, function: str = "") -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Call) and _is_read(node):
            yield function
        inner = node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else function
        yield from _functions_that_read(node, inner)


def _is_read(call: ast.Call) -> bool:
    modes = [each.value for each in call.args if isinstance(each, ast.Constant)]
    match call.func:
        case ast.Name("open"):
            return not any(str(mode)[:1] in "wax" for mode in modes)
        case ast.Attribute(ast.Name("os" | "gzip"), "open"):
            return not ({"wt", "wb"} & set(modes) or "O_WRONLY" in ast.unparse(call) or "O_CREAT" in ast.unparse(call))
        case ast.Attribute(_, "open"):
            return any(str(mode)[:1] == "r" for mode in modes)
        case ast.Attribute(_, name):
            return name in ("read_text", "read_bytes")
    return False


def test_every_other_way_to_read_a_file_has_its_reason() -> None:
    """A new one takes `read_file` or `open_file`, or states here why no other process can put a FIFO there."""
    assert set(reads()) == set(ALLOWED)
