"""The rules of style: what is a sentence of Markdown, which sentences break a rule, and what the message states."""

from __future__ import annotations

from pathlib import Path

import pytest
from prose import (
    LONG_SHARE,
    MAX_WORDS,
    Sentence,
    long_share,
    main,
    offences,
    pages,
    proselint_offences,
    sentences,
    without_code,
)

WORDS = " ".join(["word"] * 40)


def texts(markdown: str) -> list[str]:
    return [sentence.text for sentence in sentences("page.md", markdown)]


def rules(markdown: str) -> list[str]:
    return [offence.rule for offence in offences(sentences("page.md", markdown))]


def test_a_sentence_ends_at_its_stop_and_not_in_code_or_an_abbreviation() -> None:
    """A dot in inline code, in a number or behind "e.g." ends nothing; a small product name begins a sentence."""
    markdown = "It reads `a. B` once, e.g. Twice.\nIt takes 1.5 s. ptp4l waits! `x` is first? Last"

    assert texts(markdown) == [
        "It reads `a. B` once, e.g. Twice.",
        "It takes 1.5 s.",
        "ptp4l waits!",
        "`x` is first?",
        "Last",
    ]


def test_each_cell_and_each_item_is_a_text_of_its_own() -> None:
    """No sentence reaches from one cell of a table, item of a list or line of a quotation block into the next."""
    markdown = (
        "# Title\n\n| a | one two |\n| --- | --- |\n| b \\| c | d |\n\n- first\n  goes on\n- second\n\n> quoted\n> on\n"
    )

    assert texts(markdown) == ["a", "one two", "b \\| c", "d", "first goes on", "second", "quoted on"]


@pytest.mark.parametrize(
    "markdown",
    [
        f"```console\n{WORDS}\n```\n",
        f"1. item\n   ```\n   {WORDS}\n   ```\n",
        f"text\n\n    {WORDS}\n",
        f"<!-- {WORDS}\n{WORDS} -->\n",
        f"# {WORDS}\n",
    ],
    ids=["fence", "fence in a list", "indented", "comment", "heading"],
)
def test_code_comments_and_headings_are_no_sentences(markdown: str) -> None:
    """A long line of them breaks no rule, and proselint does not get their text."""
    assert rules(markdown) == []
    assert markdown.startswith("#") or "word" not in without_code(markdown)


def test_inline_code_counts_as_one_word_and_a_link_by_its_text() -> None:
    """Neither the words of a command nor the parts of an address make a sentence long; a sign alone is no word."""
    found = sentences("page.md", "Run `timesyncd status --json` + see [the page](a/b_c.md#d).\n")[0]

    assert len(found.words) == 5


def test_a_sentence_of_more_than_the_allowed_words_is_refused() -> None:
    """The limit itself is allowed."""
    assert rules(" ".join(["word"] * MAX_WORDS)) == []
    assert rules(" ".join(["word"] * (MAX_WORDS + 1)))[0].startswith("36 words, at most 35")


@pytest.mark.parametrize("first", ["Where", "Of", "Who", "Whoever", "**Where**"])
def test_an_inverted_sentence_is_refused(first: str) -> None:
    """The rule names the word and the order to write in."""
    assert "subject, verb, object" in rules(f"It is so. {first} it is missing, the bound is unknown.")[0]


def test_a_question_may_begin_with_where() -> None:
    """The rule is against inversion, not against questions."""
    assert rules("Where is the time lost?") == []


def test_a_private_word_is_refused_with_what_to_write_instead() -> None:
    """Not in code, where a name may be older than the rule, and not as a part of another word."""
    assert rules("The hub is told of it.") == ['private word "told": write published, or reported']
    assert rules("The function `told` is untold.") == []


def test_the_message_names_file_line_rule_and_sentence() -> None:
    """The line is that on which the sentence begins, also in the middle of a paragraph."""
    found = offences(sentences("docs/x.md", "Good.\nGood too.\nNobody knows\nit. Fine.\n"))

    assert [str(each) for each in found] == [
        'docs/x.md:3: private word "Nobody": write no process, no operator: name it: Nobody knows it.'
    ]


def test_the_share_of_long_sentences_leaves_out_names_in_tables() -> None:
    """A cell of one word would make every page good."""
    lengths = [30, 10, 10, 10, 1, 1, 1, 3]

    assert long_share([Sentence("p", 1, "", ("w",) * length) for length in lengths]) == 0.25


def test_proselint_finds_what_it_knows_outside_of_code() -> None:
    """With the line; spaces in a number and what only names code are no finding."""
    found = proselint_offences("page.md", "It is 50 000 ppb.\n\nIt is is late, `a` and `a`.\n\n```\nis is\n```\n")

    assert [(each.sentence.line, each.sentence.text) for each in found] == [(3, "It is is late, `a` and `a`.")]
    assert found[0].rule.startswith("proselint: There's a lexical illusion")


def test_the_exit_status_is_1_for_a_page_that_breaks_a_rule(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The last line counts sentences, and gives the share of long ones."""
    bad, good = tmp_path / "bad.md", tmp_path / "good.md"
    bad.write_text("Of these, one is good.\n")
    good.write_text("One of these is good.\n")

    assert main([str(good)]) == 0
    assert main([str(bad)]) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "prose: 1 sentences, 0.0% have more than 25 words (at most 5%), 0 break a rule"
    assert out[1].startswith(f"{bad}:1: begins with")


def test_too_many_long_sentences_fail_though_none_breaks_a_rule(tmp_path: Path) -> None:
    """A page of sentences of 30 words is refused."""
    page = tmp_path / "long.md"
    page.write_text(" ".join(["word"] * 30) + ".\n")

    assert main([str(page)]) == 1


def test_the_pages_keep_the_rules() -> None:
    """README and every page below docs/, the pages in its folders too."""
    found = [each for page in pages() for each in sentences(page.name, page.read_text())]

    assert [str(offence) for offence in offences(found)] == []
    assert long_share(found) <= LONG_SHARE
    assert {"README.md", "error-bound.md"} <= {page.name for page in pages()}
