"""
The integrations that the configuration asks for, opened and wired to a daemon. What they need is imported only then.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

from timesyncd.clocks import Clocks
from timesyncd.config import Config
from timesyncd.daemon.hub_service import HubService
from timesyncd.daemon.publisher import Publisher
from timesyncd.daemon.web_view import WebView
from timesyncd.errors import ConfigError
from timesyncd.ipc.clockbound import ClockBoundWriter


def open_clockbound(config: Config, stack: AsyncExitStack) -> ClockBoundWriter | None:
    """The writer of `[clockbound]`, which `stack` closes; None without the section. Raises ConfigError."""
    if config.clockbound is None:
        return None
    path = config.clockbound.path
    try:
        writer = ClockBoundWriter(path)
    except OSError as error:
        problem = f"the daemon cannot write the ClockBound segment: {error.strerror}"
        raise ConfigError(
            f"clockbound.path = '{path}': {problem}; name a file in an existing, writable folder"
        ) from error
    stack.callback(writer.close)
    return writer


class Integrations:
    """`tasks` are to run as long as the daemon does, by name. Raises ConfigError where an extra is missing."""

    def __init__(
        self, config: Config, publisher: Publisher, hub_service: HubService, web_view: WebView, clocks: Clocks
    ) -> None:
        self.tasks: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {}
        self._config = config
        self._publisher = publisher
        self._hub_service = hub_service
        self._web_view = web_view
        self._clocks = clocks

    def open(self, stack: AsyncExitStack) -> None:
        """`stack` closes what was opened."""
        try:
            self._open_otlp(stack)
            self._open_notify()
        except ModuleNotFoundError as error:
            extra = "otlp" if (error.name or "").startswith("opentelemetry") else "notify"
            raise ConfigError(
                f"[{extra}]: the package {error.name} is missing: in timesyncd's source folder, pip install '.[daemon,{extra}]'"
            ) from error

    def _open_otlp(self, stack: AsyncExitStack) -> None:
        if self._config.otlp is None:
            return
        from timesyncd.integrations.otlp.exporter import OtlpExporter
        from timesyncd.integrations.otlp.steps import NewestSteps

        steps = NewestSteps(lambda: self._publisher.own_jobs, self._hub_service.window)
        name, families = self._config.node.name, self._web_view.families
        exporter = OtlpExporter(self._config.otlp, name, self._clocks, families, steps)
        self._publisher.listeners.append(exporter.accept_event)
        stack.push_async_callback(exporter.close)
        self.tasks["otlp"] = exporter.run

    def _open_notify(self) -> None:
        if not self._config.notify:
            return
        from timesyncd.integrations.notify.sender import Notifier

        def handled() -> set[tuple[str, str]]:
            return {(each.finding, each.subject) for each in self._publisher.handled()}

        notifier = Notifier(self._config.notify, self._config.node.name, self._clocks, handled)
        self._publisher.listeners.append(notifier.accept_event)
        self.tasks["notify"] = notifier.run
