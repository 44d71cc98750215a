"""The line of each key in a TOML file."""

from __future__ import annotations

import tomllib

import pytest

from timesyncd.config.toml_lines import Keys, find_lines, line_of

TEXT = r"""# [not.a.table]
top = 1
a.b."c.d" = 2   # a = 3
list = [
  1, # ]
  "]", '''
]
''',
]

[one]
x = '''
[two]
y = 1'''
'quoted key' = '"'
[[arr]]
n = { m = 1, o = "=" }
[arr.sub]
k = "\\" # "
[[arr]]
[[arr.deep]]
z = 1
[[arr.deep]]
z = '''a''''
["last"]
v = 1979-05-27T07:32:00Z
"""


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        (("top",), 2),
        (("a", "b", "c.d"), 3),
        (("list",), 4),
        (("list", 1), 4),
        (("one",), 11),
        (("one", "x"), 12),
        (("one", "quoted key"), 15),
        (("arr", 0), 16),
        (("arr", 0, "n", "m"), 17),
        (("arr", 0, "sub", "k"), 19),
        (("arr", 1), 20),
        (("arr", 1, "deep", 0, "z"), 22),
        (("arr", 1, "deep", 1, "z"), 24),
        (("last", "v"), 26),
        (("last", "missing"), 25),
        (("two",), None),
        (("not", "a", "table"), None),
    ],
)
def test_a_key_has_the_line_on_which_it_stands(keys: Keys, line: int | None) -> None:
    """Comments, quotes, values over several lines and arrays of tables do not mislead."""
    assert line_of(keys, find_lines(TEXT)) == line


def test_every_path_found_is_in_the_file() -> None:
    """By the standard library's reader."""
    for keys in find_lines(TEXT):
        value = tomllib.loads(TEXT)
        for key in keys:
            value = value[key]  # type: ignore[index]


@pytest.mark.parametrize("text", ["", "[", "[[", "a", "= 1", "x = [", "]]]", '"""', "[a", "a.b."])
def test_other_text_is_no_error(text: str) -> None:
    """The file's reader refuses it; here it has no line."""
    find_lines(text)
