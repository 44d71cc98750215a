"""What a broker says no to, in words: to a connection, where no waiting mends it, and to a message."""

from __future__ import annotations

import logging
import re
import ssl
from typing import Any

import aiomqtt
from aiomqtt.exceptions import MqttConnectError
from paho.mqtt import client as paho
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from timesyncd.errors import ConfigError


class Connection(aiomqtt.Client):
    """Notes which message at QoS 1 the broker did not take; for aiomqtt a refusal is a confirmation like any other."""

    _refusal: ReasonCode | None = None

    def take_refusal(self) -> ReasonCode | None:
        """Why the last message was not taken, once; None: it was."""
        refusal, self._refusal = self._refusal, None
        return refusal

    def _on_publish(
        self, client: paho.Client, userdata: Any, mid: int, reason_code: ReasonCode, properties: Properties
    ) -> None:
        self._refusal = reason_code if reason_code.is_failure else None
        super()._on_publish(client, userdata, mid, reason_code, properties)


class Refusals(logging.Handler):
    """`logger` is for one link's connections: paho logs at each try, and does not raise, that the broker's TLS said no."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.logger = logging.Logger("paho", logging.ERROR)  # noqa: LOG001 (one a link, and it ends with it)
        self.logger.addHandler(self)
        self._alert: str | None = None

    def emit(self, record: logging.LogRecord) -> None:
        alert = re.search(r"\[SSL: \w*ALERT\w*\] (.*) \(", record.getMessage())
        self._alert = alert[1] if alert else self._alert

    def of(self, error: BaseException) -> str | None:
        """What must be changed before there can be a connection; None: nothing, the broker may just be away."""
        alert, self._alert = self._alert, None
        match error, error.__context__:
            case ConfigError() | MqttConnectError(), _:
                return str(error)
            case UnicodeError(), _:
                return f"mqtt.host is no host name: {error}"
            case _, ssl.SSLCertVerificationError() as doubt:
                return f"its certificate is not trusted: {doubt.verify_message}"
            case _, ssl.SSLError() as failure:
                return f"TLS: {failure}"
        return None if alert is None else f"it does not take our certificate: {alert}"
