"""docs/ names everything that a user can name, and describes it as the code does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from authority import Authority
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from timesyncd.__main__ import main
from timesyncd.cli.schemas import with_profile_tables
from timesyncd.config import Config, SecretSettings, SnmpUserSettings, load
from timesyncd.driver import installed_drivers, load_driver, options_of
from timesyncd.drivers.timeprovider._profiles import load as load_profile

ROOT = Path(__file__).parents[2]
CLOCK_SOURCES = (ROOT / "docs" / "clock-sources.md").read_text()
CONFIGURATION = (ROOT / "docs" / "configuration.md").read_text()
GRANDMASTERS = (ROOT / "docs" / "grandmasters.md").read_text()

#: Defaults that the page gives in words.
IN_WORDS = {
    ("[node]", "name"): "the host's name up to its first dot",
    ("[[source]]", "bounds"): "all defaults",
    ("Driver timeprovider", "profiles"): "all shipped",
}


#: Tables that several keys hold: each has one section of its own.
SHARED: dict[str, type[BaseModel]] = {"Secrets": SecretSettings, "An SNMP v3 user": SnmpUserSettings}


def inner_table(field: FieldInfo) -> type[BaseModel] | None:
    """The model of what the key holds, where that is a table that nothing else holds."""
    annotations = (field.annotation, *getattr(field.annotation, "__args__", ()))
    found = next((a for a in annotations if isinstance(a, type) and issubclass(a, BaseModel)), None)
    return None if found in SHARED.values() else found


def tables(model: type[BaseModel], heading: str) -> Iterator[tuple[str, str, FieldInfo]]:
    """(section of the page, key, field) of each key that may stand in the file."""
    for key, field in model.model_fields.items():
        inner = inner_table(field)
        is_list = getattr(field.annotation, "__origin__", None) is list
        if model is not Config and key != "options":
            yield heading, key, field
        if inner is not None and key != "options":
            outer = heading.strip("[]")
            path = f"{outer}.{key}" if outer else key
            yield from tables(inner, f"[[{path}]]" if is_list else f"[{path}]")


def of_drivers() -> Iterator[tuple[str, str, FieldInfo]]:
    for name in sorted(installed_drivers()):
        for key, field in load_driver(name).Options.model_fields.items():
            yield f"Driver {name}", key, field
            inner = inner_table(field)
            for item in inner.model_fields.items() if inner else ():
                yield f"Driver {name}: {key}", *item


KEYS = [
    *tables(Config, ""),
    *of_drivers(),
    *((section, *item) for section, model in SHARED.items() for item in model.model_fields.items()),
]
SECTIONS = {
    heading.replace("`", ""): text
    for heading, text in re.findall(r"^#{2,3} ([^\n]+)\n(.*?)(?=^#{2,3} |\Z)", CONFIGURATION, re.MULTILINE | re.DOTALL)
}


def row(section: str, key: str) -> tuple[str, str] | None:
    """Default and meaning of a key, as the page states them; None without them."""
    found = re.search(rf"^\| `{key}` \| (.*?) \| (.*) \|$", SECTIONS.get(section, ""), re.MULTILINE)
    return (found[1], found[2]) if found else None


def default_text(section: str, key: str, field: FieldInfo) -> str:
    if (section, key) in IN_WORDS:
        return IN_WORDS[section, key]
    if field.is_required():
        return "required"
    value: Any = field.get_default(call_default_factory=True)
    if isinstance(value, int | float):
        return str(value).lower().removesuffix(".0")
    if value == "":
        return "empty"
    return "unset" if value is None else "none" if value in ([], {}) else f"`{value}`"


@pytest.mark.parametrize(("section", "key", "field"), KEYS, ids=lambda part: part if isinstance(part, str) else "")
def test_every_key_is_explained_with_its_default(section: str, key: str, field: FieldInfo) -> None:
    """docs/configuration.md has a row for each key, in its own section, with the default that the code has."""
    found = row(section, key)

    assert found is not None
    assert found[0].replace(" ", "") == default_text(section, key, field).replace(" ", "")
    assert found[1]


def test_the_page_explains_no_key_that_does_not_exist() -> None:
    """A key that was removed or renamed is gone from the page too."""
    explained = {
        (section, key)
        for section, text in SECTIONS.items()
        for key in re.findall(r"^\| `([a-z_]+)` \|", text, re.MULTILINE)
    }

    assert explained == {(section, key) for section, key, _ in KEYS}


def examples() -> list[str]:
    """The whole files of the page: each names a source."""
    return [text for text in re.findall(r"```toml\n(.*?)```", CONFIGURATION, re.DOTALL) if "[[source]]" in text]


@pytest.mark.parametrize("example", examples(), ids=["smallest", "whole"])
def test_the_examples_are_good(example: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`timesyncd check-config` accepts each example, once its secrets are in place, and prints no warning."""
    for name in re.findall(r'"/etc/timesyncd/(.+?)"', example):
        (tmp_path / name).write_text(f"long enough for a key: {name}\n")
    Authority(tmp_path).identity("hub")
    path = tmp_path / "timesyncd.toml"
    path.write_text(example.replace("/etc/timesyncd", str(tmp_path)))
    status = main(["check-config", "--config", str(path)])
    lines = capsys.readouterr().out.splitlines()

    assert (status, lines[-1]) == (0, f"{path}: valid")
    assert [line for line in lines if line.startswith("warning")] == []


def test_the_whole_example_has_every_section() -> None:
    """The pages show how each section is written."""
    headings = {section for section, _, _ in KEYS if section.startswith("[")}

    assert headings - set(examples()[-1].splitlines()) == set()


@pytest.mark.parametrize("driver", sorted(installed_drivers()))
def test_every_driver_has_its_row_in_the_table_of_drivers(driver: str) -> None:
    """The table of docs/clock-sources.md names each driver that can be configured."""
    assert f"\n| `{driver}` |" in CLOCK_SOURCES


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "schemas").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.name))
def test_links_lead_somewhere(page: Path) -> None:
    """A link to a file of the project leads to one."""
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())

    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_the_tests_that_the_assumptions_name_exist() -> None:
    """docs/error-bound.md names for each assumption the test that breaks it."""
    named = set(re.findall(r"`(test_[a-z0-9_]+)`", (ROOT / "docs" / "error-bound.md").read_text()))
    written = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))

    assert named
    assert {name for name in named if f"def {name}(" not in written} == set()


def test_the_tests_that_the_pages_name_are_files() -> None:
    """What a page of docs/ puts in backticks and begins with tests/ is a path of the tree."""
    named = {
        (page.name, path)
        for page in (ROOT / "docs").rglob("*.md")
        for path in re.findall(r"`(tests/[\w./-]*)`", page.read_text())
    }

    assert named
    assert {(page, path) for page, path in named if not (ROOT / path).exists()} == set()


def test_the_page_names_the_sources_of_the_profiles() -> None:
    """The tables of docs/grandmasters.md are those that `make schemas` writes."""
    assert with_profile_tables(GRANDMASTERS) == GRANDMASTERS


def of_grandmasters(first_key: str) -> str:
    """The TOML of docs/grandmasters.md whose blocks begin so, as one file."""
    return "\n".join(re.findall(rf"```toml\n({first_key}.*?)```", GRANDMASTERS, re.DOTALL))


def test_the_grandmasters_page_shows_a_good_configuration(tmp_path: Path) -> None:
    """What it has written into the configuration, step by step, is together a good one."""
    path = tmp_path / "timesyncd.toml"
    path.write_text(of_grandmasters(r"\["))
    config = load(path, options_of)

    assert [(grandmaster.name, grandmaster.oscillator) for grandmaster in config.grandmaster] == [("gm-a", "ocxo")]
    assert config.traps is not None and config.syslog is not None


def test_the_grandmasters_page_shows_a_good_profile(tmp_path: Path) -> None:
    """A profile as it is shown there loads."""
    path = tmp_path / "site.toml"
    path.write_text(of_grandmasters("name = "))

    assert len(load_profile(str(path)).object) == 1


def test_every_path_that_a_contributor_reads_of_exists() -> None:
    """What CONTRIBUTING.md and docs/architecture.md put in backticks and looks like a path of the tree is one."""
    pages = "".join((ROOT / page).read_text() for page in ("CONTRIBUTING.md", "docs/architecture.md"))
    named = set(re.findall(r"`((?:timesyncd|drivers|tests|schemas|docs|bench|examples|systemd)/[\w./-]*)`", pages))

    assert named
    assert {path for path in named if not (ROOT / path).exists()} == set()
