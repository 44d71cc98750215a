"""What `make matrix` decides without a chroot: versions, sources, the table, and where it does not run at all."""

from __future__ import annotations

from pathlib import Path

import debian_roots
import matrix_run
import pytest
from debian_roots import SUITES, Chroot, NeedNotMet, mirror_of, sources, upstream_version
from matrix_run import CHRONY, Row, has, read_report, table

BOOKWORM, BACKPORTS, *_, SID = SUITES

REPORT = """<testsuites><testsuite>
<testcase classname="tests.matrix.test_chrony" name="test_udp"><properties><property name="udp" value="yes"/></properties></testcase>
<testcase classname="tests.integration.test_chrony_real" name="test_a"/>
{more}
</testsuite></testsuites>"""


@pytest.mark.parametrize(
    ("debian", "upstream"),
    [("4.6.1-3+deb13u2", "4.6.1"), ("3.1.1-4+b2", "3.1.1"), ("1:2.3-4-5", "2.3-4"), ("257.13", "257.13")],
)
def test_the_upstream_version(debian: str, upstream: str) -> None:
    """Without epoch and Debian's revision; a version without a revision is whole."""
    assert upstream_version(debian) == upstream


def test_the_mirror_is_that_of_this_machine() -> None:
    """The archive among the sites of apt, and one plain line where there is none."""
    sites = ["http://security.example/debian-security/", "http://mirror.example/debian/", "http://other.example/x"]

    assert mirror_of(sites) == "http://mirror.example/debian"
    with pytest.raises(NeedNotMet, match="no Debian mirror"):
        mirror_of(sites[::2])


def test_the_sources_of_a_suite() -> None:
    """A release has its updates; backports are beside their release; of sid a late copy is taken."""
    lines = {suite.name: sources("http://m/debian", suite) for suite in (BOOKWORM, BACKPORTS, SID)}

    assert [line.split("] ")[1] for line in lines["bookworm"]] == [
        "http://m/debian bookworm main", "http://m/debian bookworm-updates main", "http://m/debian-security bookworm-security main",
    ]  # fmt: skip
    assert lines["bookworm-backports"][:3] == lines["bookworm"]
    assert lines["bookworm-backports"][3].endswith(" bookworm-backports main")
    assert len(lines["sid"]) == 1 and "check-valid-until=no" in lines["sid"][0]


@pytest.mark.parametrize("kind", ["failure", "error", "skipped"])
def test_a_test_that_did_not_pass_fails_the_row(kind: str) -> None:
    """Skipped counts as failed, and only what passed is counted."""
    more = f'<testcase classname="tests.integration.test_chrony_real" name="test_b"><{kind}/></testcase>'

    assert read_report(REPORT.format(more="")) == ({"udp": "yes", "integration tests": "1 passed"}, [])
    assert read_report(REPORT.format(more=more))[1] == ["tests.integration.test_chrony_real::test_b"]


def test_the_table_has_a_row_for_each_version() -> None:
    """What a row did not measure is a question mark, and not left out."""
    chroots = [
        Chroot(suite, Path(), {"chrony": version}) for suite, version in ((BOOKWORM, "4.3-2+deb12u3"), (SID, "4.9-2"))
    ]
    rows = [Row(CHRONY, chroots[0], {"udp": "yes", "activity": "yes"}), Row(CHRONY, chroots[1], {"udp": "no"})]

    assert table(rows).splitlines() == [
        "| version | Debian | udp | activity |",
        "| --- | --- | --- | --- |",
        "| chrony 4.3 | 12 | yes | yes |",
        "| chrony 4.9 | sid | no | ? |",
    ]


def test_a_suite_has_rows_for_what_it_has() -> None:
    """Backports without chrony have no row for it."""
    assert has(Chroot(BACKPORTS, Path(), {"chrony": "4.6-1~bpo12+1"}), CHRONY)
    assert not has(Chroot(BACKPORTS, Path(), {"linuxptp": "4.2-1~bpo12+1"}), CHRONY)


def test_without_root_it_ends_with_2(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, and no test is left out silently."""
    monkeypatch.setattr("os.geteuid", lambda: 1000)

    assert matrix_run.main() == 2
    assert capsys.readouterr().err.splitlines() == [
        "matrix: the matrix needs root (mmdebstrap, chroot, namespaces): run it as root"
    ]


def test_without_the_mirror_it_ends_with_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The line is apt's own."""

    def unreachable(_: Path) -> list[Chroot]:
        raise NeedNotMet("apt-get failed with 100: E: Could not connect to mirror.example")

    monkeypatch.setattr(matrix_run, "check_needs", lambda: None)
    monkeypatch.setattr(matrix_run, "made", unreachable)

    assert matrix_run.main() == 2
    assert capsys.readouterr().err == "matrix: apt-get failed with 100: E: Could not connect to mirror.example\n"


def test_the_cache_is_where_the_user_wants_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """$TIMESYNCD_MATRIX_CACHE, else below the home folder."""
    monkeypatch.setenv("TIMESYNCD_MATRIX_CACHE", str(tmp_path))
    assert debian_roots.default_cache() == tmp_path

    monkeypatch.delenv("TIMESYNCD_MATRIX_CACHE")
    assert debian_roots.default_cache() == Path.home() / ".cache" / "timesyncd-matrix"
