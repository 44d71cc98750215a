"""The site of the documentation: its navigation, its links out of docs/, its versions, and what every page has."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from build_site import minor_version, versions_json
from operations_manual import blocks, parse
from reference import pictures
from site_hooks import outside_targets, site_uri, with_empty_lines, with_inside_links

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))


#: Takes mkdocs.yml's tags for functions of Python as the texts that they are.
LOADER: Any = type("Loader", (yaml.SafeLoader,), {})
LOADER.add_multi_constructor("tag:yaml.org,2002:python/object/apply:", lambda loader, suffix, node: suffix)


def navigation() -> list[str]:
    found: list[str] = []

    def walk(part: object) -> None:
        if isinstance(part, str):
            found.append(part)
        for each in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
            walk(each)

    walk(yaml.load((ROOT / "mkdocs.yml").read_text(), LOADER)["nav"])
    return found


def test_each_page_is_in_the_navigation_once() -> None:
    """A page that nothing leads to is not found; one that is gone breaks the site."""
    assert sorted(navigation()) == sorted(page.relative_to(DOCS).as_posix() for page in PAGES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_each_page_states_its_readers_first(page: Path) -> None:
    """Its first paragraph says for whom it is, and addresses them."""
    text = re.sub(r"<!--.*?-->\n+", "", page.read_text(), flags=re.DOTALL)
    title, _, rest = text.partition("\n\n")

    assert re.fullmatch(r"# .+", title)
    assert "This page is for you if " in rest.partition("\n## ")[0]


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.parent.name != "reference"], ids=lambda page: page.name
)
def test_each_page_leads_to_the_glossary(page: Path) -> None:
    """A word that the project gave a meaning is one click away."""
    assert page.name == "glossary.md" or re.search(r"\]\((\.\./)?glossary\.md(#[a-z-]+)?\)", page.read_text())


def test_a_link_out_of_docs_leads_to_a_copy_in_the_site() -> None:
    """From a page of docs/ and from a copied file; a link to what does not exist stays, and one to a folder is its text."""
    page, readme = DOCS / "start" / "contributor.md", ROOT / "README.md"
    markdown = "[a](../../CONTRIBUTING.md#recipes) [b](../jobs.md) [c](../../none.md) [d](https://example.org/x) [e](../../schemas)"

    assert ROOT / "CONTRIBUTING.md" in outside_targets(page, DOCS)
    assert site_uri(ROOT / "schemas" / "SHM.md", DOCS) == "files/schemas/SHM.md"
    assert with_inside_links(markdown, page, DOCS) == (
        "[a](../files/CONTRIBUTING.md#recipes) [b](../jobs.md) [c](../../none.md) [d](https://example.org/x) e"
    )
    assert with_inside_links("![p](docs/pictures/bound.svg) [c](CONTRIBUTING.md)", readme, DOCS) == (
        "![p](../pictures/bound.svg) [c](CONTRIBUTING.md)"
    )


def test_a_list_or_table_behind_text_gets_its_empty_line() -> None:
    """GitHub needs none, Python-Markdown does; code, and the lines of a list itself, stay as they are."""
    markdown = "text:\n- a\n  more\n- b\n\ntext\n| x |\n| --- |\n\n```\ntext\n- code\n```\n"

    assert with_empty_lines(markdown) == markdown.replace("text:\n-", "text:\n\n-").replace("text\n|", "text\n\n|")


def test_the_selector_of_versions_offers_the_newest_first() -> None:
    """A version is its first two numbers, compared as numbers."""
    assert minor_version('[project]\nversion = "1.10.2"\n') == "1.10"
    assert [(entry["version"], entry["aliases"]) for entry in json.loads(versions_json(["1.9", "1.10", "0.1"]))] == [
        ("1.10", ["latest"]),
        ("1.9", []),
        ("0.1", []),
    ]


def test_the_changelog_keeps_its_form() -> None:
    """Keep a Changelog 1.1.0: the unreleased changes first, then versions that fall, with known kinds of changes."""
    text = (ROOT / "CHANGELOG.md").read_text()
    versions = re.findall(r"^## (.+)$", text, re.MULTILINE)
    released = [re.fullmatch(r"\[(\d+)\.(\d+)\.(\d+)\] - \d{4}-\d\d-\d\d", version) for version in versions[1:]]
    numbers = [tuple(map(int, found.groups())) for found in released if found]

    assert versions[0] == "[Unreleased]"
    assert None not in released
    assert numbers == sorted(numbers, reverse=True)
    assert set(re.findall(r"^### (.+)$", text, re.MULTILINE)) <= {
        "Added", "Changed", "Deprecated", "Removed", "Fixed", "Security",
    }  # fmt: skip
    assert "keepachangelog.com" in text and "semver.org" in text


def test_no_page_installs_from_a_registry() -> None:
    """The name is on none: pip would fetch what somebody else puts there."""
    texts = {page: page.read_text() for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES]}
    pretended = re.compile(r"pip install [^\n`]*(?<![\w/-])'?timesyncd(?![\w./-])")

    assert [page.name for page, text in texts.items() if pretended.search(text)] == []


def test_the_badges_of_the_readme_and_the_picture_of_the_layers_are_true() -> None:
    """Licence, oldest Python, the client's dependencies and the layers are those of pyproject.toml."""
    pyproject, pages = (ROOT / "pyproject.toml").read_text(), (ROOT / "README.md", DOCS / "architecture.md")
    shown = "".join(page.read_text() for page in pages)

    for name, svg in pictures(pyproject).items():
        assert (DOCS / "pictures" / name).read_text() == svg, "run: make schemas"
        assert f"pictures/{name})" in shown


def anchors(page: Path) -> set[str]:
    """Those of the page's headings, as GitHub and the site make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    titles = [re.sub(r"\[(.*?)\]\(.*?\)", r"\1", title) for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE)]
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES], ids=lambda page: page.name)
def test_each_anchor_of_a_link_is_a_heading(page: Path) -> None:
    """A heading that is renamed breaks the links to it: `make docs` finds that too, and is no part of `make check`."""
    links = re.findall(r"\]\((?!https?:)([^)#\s]*\.md)?#([^)\s]+)\)", page.read_text())
    targets = [((page.parent / path).resolve() if path else page, anchor) for path, anchor in links]

    assert [anchor for target, anchor in targets if anchor not in anchors(target)] == []


def test_the_page_on_upgrades_states_the_versions_of_the_layouts() -> None:
    """Those that schemas/ documents byte by byte."""
    text = (DOCS / "upgrading.md").read_text()
    memory, link = ((ROOT / "schemas" / name).read_text() for name in ("SHM.md", "joblink.md"))
    clock = re.search(r"^## Layout \(version (\d+)\)$", memory, re.MULTILINE)
    job = re.search(r"^## The job segment \(layout version (\d+)\)$", link, re.MULTILINE)
    marks = re.search(r"^## The datagram \(version (\d+)\)$", link, re.MULTILINE)
    assert clock and job and marks

    assert f"the clock segment, layout {clock[1]} |" in text
    assert f"the job segment, layout {job[1]} |" in text
    assert f"the datagram of marks, version {marks[1]} |" in text


#: Commands of docs/upgrading.md that no other page has, and the test that runs them.
RUN_ELSEWHERE = {"timesyncd --version": "tests/unit/test_main.py"}


def test_each_command_of_the_page_on_upgrades_runs_in_a_test() -> None:
    """Each is a line of a block that a test runs: of docs/operations.md in a virtual machine, or of docs/backup.md."""
    typed = {
        line.removeprefix("$ ") for block in parse((DOCS / "backup.md").read_text()) for line in block.text.splitlines()
    }
    typed |= {line for block in blocks().values() for line in block.text.splitlines()}
    commands = [line for block in parse((DOCS / "upgrading.md").read_text()) for line in block.text.splitlines()]

    assert len(commands) == 4
    assert [command for command in commands if command not in typed and command not in RUN_ELSEWHERE] == []
