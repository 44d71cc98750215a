"""docs/reference/ is what `make schemas` writes, and has every command, key, metric, message and finding."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from reference import FOLDER, reference_pages

from timesyncd.__main__ import COMMANDS
from timesyncd.findings.catalogue import CATALOGUE

PAGES = reference_pages()
DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.parametrize("name", PAGES)
def test_each_page_is_what_the_code_states(name: str) -> None:
    """If this fails: `make schemas` writes the pages again."""
    assert (FOLDER / name).read_text() == PAGES[name], "run: make schemas"


def test_no_page_is_left_of_what_no_longer_exists() -> None:
    """Every file of the folder is written by the code."""
    assert {path.name for path in FOLDER.iterdir()} == set(PAGES)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_its_section(command: str) -> None:
    """With its arguments and examples, and without what argparse fills in later."""
    section = PAGES["commands.md"].partition(f"### `timesyncd {command}`\n")[2].partition("\n### ")[0]

    assert section and "%(" not in section
    assert f"timesyncd {command}" in section.partition("```sh")[2]


def test_every_finding_leads_to_its_entry_in_the_run_book() -> None:
    """The entry's heading is the finding's id."""
    entries = re.findall(r"^### `(.+?)`$", (DOCS / "operations.md").read_text(), re.MULTILINE)

    assert re.findall(r"operations\.md#([a-z0-9-]+)\)", PAGES["findings.md"])[1:] == sorted(CATALOGUE)
    assert set(entries) == set(CATALOGUE)


def test_no_page_depends_on_the_machine_that_wrote_it() -> None:
    """The host's name is a default, and is stated as such."""
    [default] = re.findall(
        r"^## `\[node\]`.*?^\| `name` \| string \| (.*?) \|$", PAGES["keys.md"], re.MULTILINE | re.DOTALL
    )

    assert default == "set at the start"
