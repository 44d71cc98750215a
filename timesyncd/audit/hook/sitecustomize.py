"""
`timesyncd run-audit` puts this first into PYTHONPATH, so that every interpreter of the script runs it at its start.

It imports only modules that an interpreter has loaded anyway, does nothing until the process creates a process group of
torch.distributed, and never makes the script fail.
"""

from __future__ import annotations

import sys
from importlib import util
from importlib.machinery import ModuleSpec, PathFinder
from os import environ, path
from types import ModuleType

HERE = path.dirname(path.abspath(__file__))
DISTRIBUTED = "torch.distributed.distributed_c10d"


class TimesyncdFinder:
    """
    Finds `timesyncd` in run-audit's own installation, for an interpreter without it; it finds no other package there.
    """

    @staticmethod
    def find_spec(name: str, where: object = None, target: object = None) -> ModuleSpec | None:
        folder = environ.get("TIMESYNCD_AUDIT_PACKAGE", "")
        if name != "timesyncd" or not folder:
            return None
        first = path.join(folder, "__init__.py")
        return util.spec_from_file_location(name, first, submodule_search_locations=[folder])


class DistributedFinder:
    """Wraps init_process_group when its module is imported."""

    @classmethod
    def find_spec(cls, name: str, where: object = None, target: object = None) -> ModuleSpec | None:
        if name != DISTRIBUTED:
            return None
        sys.meta_path.remove(cls)
        spec = util.find_spec(name)
        loader = spec.loader if spec is not None else None
        if loader is not None:
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                wrap(module)

            loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def wrap(module: ModuleType) -> None:
    """Starts metering when the first process group has been created."""
    original = getattr(module, "init_process_group", None)
    if original is None:
        return
    import functools

    @functools.wraps(original)
    def init_process_group(*args, **kwargs):  # type: ignore[no-untyped-def]
        result = original(*args, **kwargs)
        begin_metering()
        return result

    module.init_process_group = init_process_group  # type: ignore[attr-defined]


def begin_metering() -> None:
    """Starts metering. An error is written beside the marks."""
    try:
        from timesyncd.client.torch import unmodified

        unmodified.start()
    except Exception as error:  # noqa: BLE001  the script goes on
        write_note(error)


def write_note(error: Exception) -> None:
    """Writes the error beside the marks, because the script's output belongs to the script."""
    import os

    try:
        folder = environ["TIMESYNCD_RECORD"]
        os.makedirs(folder, exist_ok=True)
        with open(path.join(folder, f"process-{os.getpid()}.note"), "a") as file:
            file.write(f"not metered: {type(error).__name__}: {error} (Python {sys.version.split()[0]})\n")
    except (OSError, KeyError):
        pass


def run_next_sitecustomize() -> None:
    """Runs the user's own sitecustomize, which this one precedes; its errors are not caught."""
    sys.path[:] = [entry for entry in sys.path if path.abspath(entry or ".") != HERE]
    own = PathFinder.find_spec("sitecustomize")
    if own is not None and own.loader is not None:
        module = util.module_from_spec(own)
        sys.modules["sitecustomize"] = module
        own.loader.exec_module(module)


if "TIMESYNCD_RECORD" in environ:
    sys.meta_path.insert(0, DistributedFinder)
    sys.meta_path.append(TimesyncdFinder)
run_next_sitecustomize()
