"""`python -m timesyncd.drivers.timeprovider._table`, from the tree's top, writes what the profiles rest on into docs/grandmasters.md."""

from __future__ import annotations

from pathlib import Path

from timesyncd.drivers.timeprovider._profiles import SHIPPED, load, proven_table

START = "<!-- Written by `make schemas` from drivers/timeprovider/profiles/; a test fails when they differ. -->\n"
END = "<!-- End of what `make schemas` writes. -->\n"


def markdown() -> str:
    """A table a profile, in the order of the shipped ones."""
    return "\n".join(map(_of_profile, SHIPPED))


def _of_profile(name: str) -> str:
    rows = [f"| `{row.what}` | {row.oid or '-'} | {row.confidence} | {row.source} |" for row in proven_table([name])]
    table = ["", "| field | object | confidence | source |", "| --- | --- | --- | --- |", *rows] if rows else []
    text = "\n".join([f"### Profile `{name}`", "", f"{load(name).title}.", *table, ""])
    return text.replace("<", "&lt;")


def replaced(page: str) -> str:
    """The page with the tables of now between the two marks."""
    before, _, rest = page.partition(START)
    return f"{before}{START}\n{markdown()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    path = Path("docs/grandmasters.md")
    path.write_text(replaced(path.read_text()))
