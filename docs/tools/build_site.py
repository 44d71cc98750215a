"""
Builds the site of the documentation into build/docs/, with one folder a version; every link is checked.

    python docs/tools/build_site.py [--out FOLDER]

A folder of an earlier version that is there already stays, and `versions.json` names it: the selector of the page offers it.
Exit status: that of mkdocs, which is not 0 if a link or an anchor leads nowhere.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]

INDEX = '<!doctype html><meta charset="utf-8"><title>timesyncd</title><meta http-equiv="refresh" content="0; url={version}/index.html">\n'


def main() -> int:
    reader = argparse.ArgumentParser(description="Build the documentation's site.")
    reader.add_argument("--out", type=Path, default=PROJECT / "build" / "docs", metavar="FOLDER")
    out: Path = reader.parse_args().out
    version = minor_version((PROJECT / "pyproject.toml").read_text())
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]  # with --quiet it would count no warning
    places = ["--config-file", str(PROJECT / "mkdocs.yml"), "--site-dir", str(out / version)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}  # advertisement of the theme's successor
    status = subprocess.run([*command, *places], check=False, env=environment).returncode
    if status == 0:
        (out / "versions.json").write_text(versions_json([path.name for path in out.iterdir() if path.is_dir()]))
        (out / "index.html").write_text(INDEX.format(version=version))
        print(f"docs: {out / version / 'index.html'}")
    return status


def minor_version(pyproject: str) -> str:
    """Major and minor number: a patch release changes no page's address."""
    return ".".join(str(tomllib.loads(pyproject)["project"]["version"]).split(".")[:2])


def versions_json(versions: list[str]) -> str:
    """What the page's selector reads, in the form of the program mike: the newest version first."""
    newest_first = sorted(versions, key=lambda version: [int(part) for part in version.split(".")], reverse=True)
    entries = [
        {"version": version, "title": version, "aliases": ["latest"] if at == 0 else []}
        for at, version in enumerate(newest_first)
    ]
    return json.dumps(entries, indent=2) + "\n"


if __name__ == "__main__":
    sys.exit(main())
