"""What the import layers of pyproject.toml cannot express: no cycle anywhere, and which package may import what from outside."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import grimp
import pytest

CLIENT = (
    "timesyncd.client",
    "timesyncd.ipc",
    "timesyncd.bound",
    "timesyncd.clocks",
    "timesyncd.errors",
    "timesyncd.sample",
    "timesyncd.units",
)
TORCH = ("timesyncd.client.torch", "timesyncd.training")


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("timesyncd", include_external_packages=True)


def components(graph: grimp.ImportGraph) -> Iterator[set[str]]:
    """The strongly connected components of more than one module (Tarjan 1972)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []

    def visit(module: str) -> Iterator[set[str]]:
        number[module] = lowest[module] = len(number)
        path.append(module)
        for imported in graph.find_modules_directly_imported_by(module):
            if imported not in number:
                yield from visit(imported)
            if imported in path:
                lowest[module] = min(lowest[module], lowest[imported])
        if lowest[module] == number[module]:
            component = set(path[path.index(module) :])
            del path[path.index(module) :]
            if len(component) > 1:
                yield component

    for module in sorted(graph.modules):
        if module not in number:
            yield from visit(module)


def within(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def test_no_import_cycle_exists(graph: grimp.ImportGraph) -> None:
    """Function-local imports count, since a cycle that is imported late is a cycle."""
    assert [sorted(component) for component in components(graph)] == []


def test_a_cycle_would_be_seen() -> None:
    """Three modules in a circle are one component; the module that imports them is none."""
    graph = grimp.ImportGraph()
    for importer, imported in (("a", "b"), ("b", "c"), ("c", "a"), ("d", "a")):
        graph.add_import(importer=importer, imported=imported)

    assert list(components(graph)) == [{"a", "b", "c"}]


def test_the_client_imports_the_standard_library_alone(graph: grimp.ImportGraph) -> None:
    """torch is the exception, in client.torch and with it lightning and transformers."""
    foreign = {
        (module, imported)
        for module in graph.modules
        if within(module, CLIENT)
        for imported in graph.find_modules_directly_imported_by(module)
        if imported.partition(".")[0] not in {"timesyncd", *sys.stdlib_module_names}
    }
    outside_torch = {(module, imported) for module, imported in foreign if not within(module, TORCH)}

    assert outside_torch == set()
    assert {imported for _, imported in foreign} == {"torch", "lightning", "transformers"}


def test_the_client_reaches_only_its_own_layers(graph: grimp.ImportGraph) -> None:
    """Whatever the client imports, directly or not, is the client, ipc, or one of the shared modules."""
    reached = {
        imported
        for module in graph.modules
        if within(module, ("timesyncd.client",))
        for imported in graph.find_modules_directly_imported_by(module)
        if imported.startswith("timesyncd.")
    }

    assert {module for module in reached if not within(module, CLIENT)} == set()


def test_only_training_and_the_torch_client_import_torch(graph: grimp.ImportGraph) -> None:
    """A daemon never loads it."""
    importers = graph.find_modules_that_directly_import("torch")

    assert importers
    assert {module for module in importers if not within(module, TORCH)} == set()
