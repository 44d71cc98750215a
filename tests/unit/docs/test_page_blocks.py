"""How what a command printed is compared with what a page shows, and which steps a page has."""

from __future__ import annotations

from pathlib import Path

import page_blocks
import pytest
from page_blocks import Ran, Step, run, steps


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        (("took 1.5 s, at 10:00",), ("took 20 ms, at 23:59",), True),
        (("a  b",), ("a b   ",), True),
        (("within +-1.5 us",), ("within +-20 ns",), True),
        (("rank 1 of node-1, bucket 2",), ("rank 1 of node-1, bucket 2",), True),
        (("Rank 1 is late",), ("Rank 0 is late",), False),
        (("node-1 is late",), ("node-2 is late",), False),
        (("a", "...", "z"), ("a", "b", "c", "z"), True),
        (("a", "...", "z"), ("a", "z"), True),
        (("it goes…",), ("it goes on",), True),
        (("a",), ("b",), False),
        (("a",), ("a", "b"), False),
        (("a", "b"), ("a",), False),
        (("a.c",), ("abc",), False),
        ((), ("anything",), True),
    ],
)
def test_what_is_printed_is_what_is_shown(shown: tuple[str, ...], printed: tuple[str, ...], same: bool) -> None:
    """Numbers with their units, spaces and left-out lines may differ, words may not."""
    assert Ran(Step("x", shown=shown), printed).is_as_shown() == same


def test_the_steps_of_a_page_run_in_one_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are written, prompts separate commands, what is listed does not run, and a variable lasts; both outputs are kept."""
    (tmp_path / "page.md").write_text(
        '```sh\nrm -r /\n```\n```toml title="a.toml"\nport = 8319\n```\n```sh\nX=1\n```\n'
        "```console\n$ cat a.toml >&2\nport = 8319\n$ echo $X\nno\n```\n"
    )
    monkeypatch.setattr(page_blocks, "DOCS", tmp_path)
    done = run(steps("page.md", {"rm": "dangerous"}), tmp_path, {"8319": "1234"})

    assert [(each.printed, each.is_as_shown()) for each in done[2:]] == [(("port = 1234",), True), (("1",), False)]


def test_a_block_that_is_listed_and_gone_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of what does not run names no block that the page has not."""
    (tmp_path / "page.md").write_text("```sh\ntrue\n```\n")
    monkeypatch.setattr(page_blocks, "DOCS", tmp_path)

    with pytest.raises(KeyError, match="no block begins with"):
        steps("page.md", {"false": "reason"})
