"""`python -m timesyncd.web.export`, from the tree's top, writes the published contract of HTTP into schemas/."""

from __future__ import annotations

from pathlib import Path

from timesyncd.web import openapi
from timesyncd.web.app import ROUTES


def main(folder: Path) -> None:
    (folder / "openapi.json").write_text(openapi.text(ROUTES))


if __name__ == "__main__":
    main(Path("schemas"))
