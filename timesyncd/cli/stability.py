"""Show MTIE, TDEV, ADEV, constant and dynamic time error of a clock, and compare them with the masks of ITU-T."""

from __future__ import annotations

import json
import time
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from timesyncd.cli._common import (
    add_history_arguments,
    audit_extra_is_missing,
    knows_source,
    report_damaged,
    store_place,
    url_of,
)
from timesyncd.cli._parser import FileName
from timesyncd.stability.readings import Reading
from timesyncd.stability.report import StabilityReport, pair_stability, stability_of

if TYPE_CHECKING:
    from timesyncd.store.engine import StoreLocation

EXAMPLES = (
    "timesyncd stability ptp --since 1d --plot ptp.svg",
    "timesyncd stability ptp --since 6h --against http://n2:8319",
)

_PLOTS = (".pdf", ".png", ".svg")

#: One line each, below the title of the output.
NOTES = {
    "offset": "A measured offset is what the servo reports against its reference, not the truth: no asymmetry of the path is in it.",
    "channel": "A time error is what the grandmaster measures of this channel against its own reference, not the truth.",
    "pair": "The difference of two measured offsets is what the servos report, not the truth: no asymmetry of a path is in it.",
}


@dataclass(frozen=True, slots=True)
class Series:
    """
    What one report is about. `report` None: unknown, for the reason in `problem`. `references`: of a pair, the references
    against which both nodes were compared.
    """

    title: str
    note: str
    report: StabilityReport | None
    problem: str | None = None
    references: tuple[str, ...] = ()


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "source",
        metavar="SOURCE",
        help="name of a [[source]] that measures an offset, or of a [[grandmaster]] with measured channels",
    )
    add_history_arguments(parser, since="1d")
    parser.add_argument(
        "--against",
        type=_other_node,
        metavar="NODE",
        help="another node's daemon (http://n2:8319), or its store, file or URL: show the difference to its source of the same name, this node minus that one",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per line and series")
    parser.add_argument(
        "--plot", type=_plot_file, metavar="FILE", help="draw ADEV, TDEV and MTIE with the masks: .svg, .png or .pdf"
    )


def _other_node(text: str) -> FileName:
    return FileName(url_of(text) if text.startswith(("http://", "https://")) else text)


def _plot_file(text: str) -> Path:
    path = Path(text)
    if path.suffix not in _PLOTS:
        raise ArgumentTypeError(f"{text!r} ends with none of {', '.join(_PLOTS)}")
    return path


def run(args: Namespace) -> int:
    """0: printed; 1: no report, because it is unknown; 2 for a source that the store does not know. Raises ConfigError, SourceError, StoreError."""
    from timesyncd.store.history import damaged_rows, sources

    if args.plot is not None and audit_extra_is_missing("stability --plot"):
        return 2
    place = store_place(args, "so there is no history")
    known = sources(place)
    if not knows_source(place, known, args.source):
        return 2
    now_ns = time.time_ns()
    span = (now_ns - args.since, now_ns - args.until)
    found = list(_all_series(args, place, known[args.source], span))
    _print(found, args)
    report_damaged(damaged_rows(place, args.source, *span))
    return 0 if any(series.report for series in found) else 1


def _print(found: list[Series], args: Namespace) -> None:
    from timesyncd.cli import _stability_output as output

    for series in found:
        if args.json:
            about = {
                "series": series.title,
                "note": series.note,
                "problem": series.problem,
                "references": series.references,
            }
            print(json.dumps(about | ({} if series.report is None else asdict(series.report))))
        else:
            output.print_report(series.title, series.note, series.report, series.problem)
    if args.plot is not None:
        output.plot(args.plot, [(series.title, series.report) for series in found if series.report is not None])


def _all_series(args: Namespace, place: StoreLocation, kind: str, span: tuple[int, int]) -> Iterator[Series]:
    from timesyncd.store.time_errors import channel_readings, offset_readings, time_error_channels

    if args.against is not None:
        yield _pair(args, place, span)
        return
    if kind != "grandmaster":
        readings = offset_readings(place, args.source, *span)
        if readings is None:
            yield Series(
                args.source, NOTES["offset"], None, f"a source of kind {kind} measures no offset from a reference"
            )
        else:
            yield _series(args.source, "offset", stability_of(readings, span[1] - span[0]))
        return
    channels = time_error_channels(place, args.source, *span)
    if not channels:
        yield Series(args.source, NOTES["channel"], None, "the store has no time errors of its channels in this span")
    for channel in channels:
        report = stability_of(channel_readings(place, args.source, channel, *span), span[1] - span[0])
        yield _series(f"{args.source} {channel}", "channel", report)


def _series(title: str, note: str, report: StabilityReport | None) -> Series:
    return Series(title, NOTES[note], report, None if report else "fewer than two readings in this span")


def _pair(args: Namespace, place: StoreLocation, span: tuple[int, int]) -> Series:
    from timesyncd.store.time_errors import offset_readings

    title = f"{args.source} of {place} minus {args.source} of {args.against}"
    first, second = offset_readings(place, args.source, *span), _other_readings(args, span)
    if first is None or second is None:
        missing = place if first is None else args.against
        return Series(title, NOTES["pair"], None, f"{missing} has no source {args.source!r} that measures an offset")
    pair = pair_stability(first, second, span[1] - span[0])
    note = " ".join(filter(None, (NOTES["pair"], _common_reference(pair.references), pair.left_out)))
    return Series(title, note, pair.report, pair.problem, pair.references)


def _other_readings(args: Namespace, span: tuple[int, int]) -> Iterator[Reading] | None:
    """Of the other node; None: its source measures no offset. Raises ConfigError, SourceError, StoreError."""
    from timesyncd.store.engine import StoreLocation
    from timesyncd.store.time_errors import offset_readings
    from timesyncd.web.peers import peer_readings

    if args.against.startswith(("http://", "https://")):
        return peer_readings(args.against, args.source, *span)
    return offset_readings(StoreLocation.named(args.against), args.source, *span)


def _common_reference(references: tuple[str, ...]) -> str:
    """Empty where nothing was compared."""
    if not references:
        return ""
    return f"Compared against {', '.join(references)}: that reference's own error is in both offsets, and not in the difference."
