"""
What `timesyncd run-audit` puts in front of PYTHONPATH: every interpreter of the script runs this at its start.

The standard library alone, and of that only what an interpreter has loaded anyway; nothing else happens before the process
makes a process group of torch.distributed, and nothing at all that could fail the script.
"""

from __future__ import annotations

import sys
from importlib import util
from importlib.machinery import ModuleSpec, PathFinder
from os import environ, path
from types import ModuleType

HERE = path.dirname(path.abspath(__file__))
DISTRIBUTED = "torch.distributed.distributed_c10d"


class OurPackage:
    """Finds `timesyncd` where run-audit has it, for an interpreter that has none; nothing else from there."""

    @staticmethod
    def find_spec(name: str, where: object = None, target: object = None) -> ModuleSpec | None:
        folder = environ.get("TIMESYNCD_AUDIT_PACKAGE", "")
        if name != "timesyncd" or not folder:
            return None
        first = path.join(folder, "__init__.py")
        return util.spec_from_file_location(name, first, submodule_search_locations=[folder])


class WhenDistributed:
    """Waits for the module with init_process_group, and wraps that."""

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
    """The first process group that is made begins the metering."""
    original = getattr(module, "init_process_group", None)
    if original is None:
        return
    import functools

    @functools.wraps(original)
    def init_process_group(*args, **kwargs):  # type: ignore[no-untyped-def]
        made = original(*args, **kwargs)
        begin()
        return made

    module.init_process_group = init_process_group  # type: ignore[attr-defined]


def begin() -> None:
    try:
        from timesyncd.client.torch import unmodified

        unmodified.begin()
    except Exception as error:  # noqa: BLE001  the script goes on
        tell(error)


def tell(error: Exception) -> None:
    """Beside the marks, since the script's own output is not ours."""
    import os

    try:
        folder = environ["TIMESYNCD_RECORD"]
        os.makedirs(folder, exist_ok=True)
        with open(path.join(folder, f"process-{os.getpid()}.note"), "a") as file:
            file.write(f"not metered: {type(error).__name__}: {error} (Python {sys.version.split()[0]})\n")
    except (OSError, KeyError):
        pass


def run_the_user_s_own() -> None:
    """The sitecustomize that this one stands before; its errors are its own."""
    sys.path[:] = [entry for entry in sys.path if path.abspath(entry or ".") != HERE]
    own = PathFinder.find_spec("sitecustomize")
    if own is not None and own.loader is not None:
        module = util.module_from_spec(own)
        sys.modules["sitecustomize"] = module
        own.loader.exec_module(module)


if "TIMESYNCD_RECORD" in environ:
    sys.meta_path.insert(0, WhenDistributed)
    sys.meta_path.append(OurPackage)
run_the_user_s_own()
