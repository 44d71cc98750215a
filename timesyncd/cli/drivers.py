"""List the installed drivers and their options."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

EXAMPLES = (
    "timesyncd drivers",
    "timesyncd drivers --json",
)


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the JSON Schema of each driver's options")


def run(args: Namespace) -> int:
    """0."""
    import json

    from timesyncd.driver import installed_drivers, load_driver

    drivers = {name: load_driver(name) for name in sorted(installed_drivers())}
    if args.json:
        print(json.dumps({name: driver.Options.model_json_schema() for name, driver in drivers.items()}, indent=2))
        return 0
    for name, driver in drivers.items():
        summary = (driver.__doc__ or "").strip().partition("\n")[0]  # empty under python -OO
        print(f"{name}: {summary}")
        for key, field in driver.Options.model_fields.items():
            default = "required" if field.is_required() else f"default {field.get_default(call_default_factory=True)}"
            print(f"    {key:<20} {default}{': ' + field.description if field.description else ''}")
    return 0
