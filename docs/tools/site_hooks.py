"""
What mkdocs calls while it builds the site: the pages are written for a reader of the repository too, whose Markdown is GitHub's.

A link out of docs/ leads to a copy of the file in the site, and a list or table that follows a line of text gets the empty line that
Python-Markdown needs.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]

_OUTSIDE = re.compile(r"\]\(((?:\.\./)+)([^)#\s]+)((?:#[^)\s]*)?)\)")
_BLOCK_START = re.compile(r"(?:[-*+]|\d+[.)])\s|\|")
_FENCE = re.compile(r"\s*(```+|~~~+)")


def on_files(files: Any, config: Any) -> Any:
    """Adds each file that a page links to outside of docs/."""
    from mkdocs.structure.files import File

    docs = Path(config["docs_dir"])
    for page in [each for each in files if each.src_uri.endswith(".md")]:
        folder = (docs / page.src_uri).parent
        for target in outside_targets((docs / page.src_uri).read_text(), folder, docs):
            uri = site_uri(target)
            if files.get_file_from_path(uri) is None:
                files.append(File.generated(config, uri, abs_src_path=str(target)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    docs = Path(config["docs_dir"])
    folder = (docs / page.file.src_uri).parent
    depth = "../" * page.file.src_uri.count("/")
    return with_empty_lines(with_inside_links(markdown, folder, docs, depth))


def outside_targets(markdown: str, folder: Path, docs: Path) -> list[Path]:
    """The files outside of `docs` to which a page in `folder` links."""
    found = [(folder / match[1] / match[2]).resolve() for match in _OUTSIDE.finditer(markdown)]
    return [path for path in found if path.is_file() and not path.is_relative_to(docs)]


def site_uri(target: Path) -> str:
    """The place in the site of a file outside of docs/."""
    return f"files/{target.relative_to(PROJECT).as_posix()}"


def with_inside_links(markdown: str, folder: Path, docs: Path, depth: str) -> str:
    """The page with its links out of docs/ led to the copies; `depth`: the way from the page up to the top of the site."""

    def inside(match: re.Match[str]) -> str:
        target = (folder / match[1] / match[2]).resolve()
        return (
            match[0]
            if target.is_relative_to(docs) or not target.is_file()
            else f"]({depth}{site_uri(target)}{match[3]})"
        )

    return _OUTSIDE.sub(inside, markdown)


def with_empty_lines(markdown: str) -> str:
    """The page with an empty line before each list and table that directly follows a line of text."""
    lines: list[str] = []
    fence = ""
    for line in markdown.splitlines():
        if opened := _FENCE.match(line):
            fence = "" if fence and opened[1].startswith(fence) else fence or opened[1]
        elif not fence and lines and lines[-1].strip() and _BLOCK_START.match(line) and not _in_block(lines):
            lines.append("")
        lines.append(line)
    return "\n".join(lines) + "\n"


def _in_block(lines: list[str]) -> bool:
    """The paragraph that ends `lines` is an item of a list or a row of a table."""
    for line in reversed(lines):
        if not line.strip():
            return False
        if _BLOCK_START.match(line):
            return True
    return False
