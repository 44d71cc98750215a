"""The program's argument parser: grouped help, examples of each command, and "did you mean" for a typing error."""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from timesyncd.errors import suggestion

#: Of the help, as argparse counts it.
_MARGIN = 2


class FileName(str):
    """An argument that may name a file, whose name may have bytes that are no text."""


class Parser(argparse.ArgumentParser):
    """A command's parser. `examples`: complete command lines, printed at the end of its help."""

    def __init__(self, description: str = "", examples: Sequence[str] = (), **kwargs: Any) -> None:
        width = shutil.get_terminal_size().columns - _MARGIN
        epilog = "\n".join(["examples:", *(f"  {each}" for each in examples)]) if examples else None
        super().__init__(
            description=textwrap.fill(description, width),
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            **kwargs,
        )
        self._given: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._given = sys.argv[1:] if args is None else list(args)
        return super().parse_known_args(args, namespace)

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        """In argparse of Python 3.11 the value of `--option=--` is an empty list, whatever the option's type is."""
        if action.option_strings and action.nargs is None and arg_strings == ["--"]:
            raise argparse.ArgumentError(action, "expected one argument")
        return super()._get_values(action, arg_strings)

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        """Python reads bytes that are no text as surrogates, which no socket, store or file takes."""
        value = super()._get_value(action, arg_string)
        may_be_bytes = isinstance(value, Path | FileName) or action.nargs == argparse.PARSER
        if not may_be_bytes and any("\ud800" <= each <= "\udfff" for each in arg_string):
            raise argparse.ArgumentError(action, f"{arg_string!r} is not text in {sys.getfilesystemencoding()}")
        return value

    def error(self, message: str) -> NoReturn:
        """The usage, then one line, with the nearest option of each that this command has not."""
        known = set(re.findall(r"--[a-z][a-z-]*", self.format_help()))
        given = [each.partition("=")[0] for each in self._given if each.startswith("--") and each != "--"]
        unknown = [each for each in given if not any(option.startswith(each) for option in known)]
        super().error(message + "".join(suggestion(each, known) for each in unknown))


class CommandLine(Parser):
    """The parser of the whole program. `groups`: the commands' names by the title under which its help lists them."""

    def __init__(self, groups: Mapping[str, Sequence[str]], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._groups = groups
        self._commands = self.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
        self._summaries: dict[str, str] = {}

    def add_command(self, name: str, description: str, examples: Sequence[str]) -> Parser:
        self._summaries[name] = description.partition("\n")[0]  # none under python -OO
        # `help` is for completion and the manual page; the program's own help has the groups.
        command: Parser = self._commands.add_parser(
            name, help=self._summaries[name], description=description, examples=examples
        )
        return command

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """An unknown option is reported by its command, which knows the nearest one."""
        parsed, rest = self.parse_known_args(args, namespace)
        if rest:
            command = self._commands.choices.get(parsed.command, self)
            command.error(f"unrecognized arguments: {' '.join(rest)}")
        return parsed

    def format_help(self) -> str:
        parts = [self.format_usage().rstrip(), self.description or ""]
        width = max(20, shutil.get_terminal_size().columns - _MARGIN)
        name_width = max(map(len, self._summaries), default=0) + 2
        for title, names in self._groups.items():
            rows = (
                textwrap.fill(
                    self._summaries[name],
                    width,
                    initial_indent=f"  {name:<{name_width}}",
                    subsequent_indent=" " * (name_width + 2),
                )
                for name in names
            )
            parts.append("\n".join([f"{title}:", *rows]))
        parts.append(
            "timesyncd COMMAND --help prints a command's options and examples; timesyncd --version the version."
        )
        return "\n\n".join(parts) + "\n"

    def error(self, message: str) -> NoReturn:
        unknown = re.match(r"argument COMMAND: invalid choice: '([^']*)'", message)
        if unknown:
            near = suggestion(unknown[1], self._summaries) or "; timesyncd --help lists the commands"
            message = f"no such command: {unknown[1]}{near}"
        self.print_usage(sys.stderr)
        self.exit(2, f"{self.prog}: {message}\n")
