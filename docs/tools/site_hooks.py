"""
What mkdocs calls while it builds the site: the pages are written for a reader of the repository too, whose Markdown is GitHub's.

A link out of docs/ leads to a copy of the file in the site, and a list or table that follows a line of text gets the empty line that
Python-Markdown needs.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]

_LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!\w+:)([^)#\s]+)(#[^)\s]*)?\)")
_BLOCK_START = re.compile(r"(?:[-*+]|\d+[.)])\s|\|")
_FENCE = re.compile(r"\s*(```+|~~~+)")


def on_files(files: Any, config: Any) -> Any:
    """Adds each file outside of docs/ that a page links to, and those that these link to."""
    from mkdocs.structure.files import File

    docs = Path(config["docs_dir"])
    waiting = [docs / each.src_uri for each in files if each.src_uri.endswith(".md")]
    while waiting:
        for target in outside_targets(waiting.pop(), docs):
            if files.get_file_from_path(site_uri(target, docs)) is None:
                files.append(File.generated(config, site_uri(target, docs), abs_src_path=str(target)))
                waiting += [target] if target.suffix == ".md" else []
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    docs = Path(config["docs_dir"])
    source = Path(page.file.abs_src_path)
    return with_empty_lines(with_inside_links(markdown, source, docs))


def outside_targets(source: Path, docs: Path) -> list[Path]:
    """The files of the project outside of `docs` to which a page links."""
    found = [(source.parent / match[2]).resolve() for match in _LINK.finditer(source.read_text())]
    return [path for path in found if path.is_file() and path.is_relative_to(PROJECT) and not path.is_relative_to(docs)]


def site_uri(target: Path, docs: Path) -> str:
    """The place of a file of the project in the site."""
    if target.is_relative_to(docs):
        return target.relative_to(docs).as_posix()
    return f"files/{target.relative_to(PROJECT).as_posix()}"


def with_inside_links(markdown: str, source: Path, docs: Path) -> str:
    """The page at `source` with its links led to their places in the site; one to a folder is its text."""
    folder = posixpath.dirname(site_uri(source, docs))

    def inside(match: re.Match[str]) -> str:
        target = (source.parent / match[2]).resolve()
        if target.is_dir():
            return match[1]
        if not target.is_file() or not target.is_relative_to(PROJECT):
            return match[0]
        return f"[{match[1]}]({posixpath.relpath(site_uri(target, docs), folder or '.')}{match[3] or ''})"

    return _LINK.sub(inside, markdown)


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
