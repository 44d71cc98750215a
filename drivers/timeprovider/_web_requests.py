"""
The requests that may be sent to a TimeProvider's web interface, and its keys in the configuration.

The interface's reads are POSTs like its writes, so the method proves nothing. Therefore only a closed list of paths with their exact
fields and values may be sent, and the log-in. The factory password's hash is only compared with the configured password, never sent.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import ssl
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Annotated, Final, Literal, get_args

from pydantic import AfterValidator, Field, SecretStr, Strict, model_validator

from timesyncd.config import FilePath, Port, SecretSettings, Section, read_file

Fields = tuple[tuple[str, str], ...]

#: The channels that have a time error. The SyncE, T1/E1 and 10 MHz channels only measure wander (MTIE, TDEV).
Channel = Literal["GNSS-1", "PPS-1", "PPS-2", "TOD-1", "TOD-2", "PTP-1", "PTP-2"]
CHANNELS: Final[tuple[Channel, ...]] = get_args(Channel)

Metric = Literal["te", "cte", "max_te"]
METRICS: Final[tuple[Metric, ...]] = get_args(Metric)

LOGIN_PATH = "/login"

#: Hidden fields of the log-in page that are sent back with the log-in; others are not sent.
TOKEN_FIELDS = frozenset({"csrf", "_csrf", "csrf_token", "csrfToken", "csrfmiddlewaretoken", "_token", "token"})
_TOKEN = re.compile(r"[A-Za-z0-9+/=_.:-]{1,512}", re.ASCII)

_CHART_METRIC = {"te": "te", "cte": "cte", "max_te": "max-te"}
_FILE_METRIC = {"te": "0", "cte": "1", "max_te": "2"}

#: The reference of a channel's measurement, as the grandmaster's own page sends it: name and number.
_REFERENCE = {"gnss": ("GNSS", "1"), "pps": ("Selected", "0"), "tod": ("GNSS", "1"), "ptp": ("GNSS", "1")}


def is_token(name: str, value: str) -> bool:
    """Whether a hidden field of the log-in page may be sent back with the log-in."""
    return name in TOKEN_FIELDS and _TOKEN.fullmatch(value) is not None


def _chart_fields(channel: Channel, metric: Metric) -> Fields:
    word, number = channel.lower().split("-")
    return (
        ("metric", _CHART_METRIC[metric]),
        ("xRange", "600"),
        ("tStart", "-1"),
        ("channelName", word),
        ("channelId", number),
    )


def _history_fields(channel: Channel, metric: Metric) -> Fields:
    """`file_type` 0: the file's times are UTC."""
    word, number = channel.lower().split("-")
    reference, reference_id = _REFERENCE[word]
    return (
        ("chart_metric", "te"),
        ("action1", "savefile"),
        ("file_type", "0"),
        ("chart_x_range", "600"),
        (f"chart_{word}Id", number),
        (f"{word}_id", number),
        (f"{word}_ref", reference),
        (f"{word}_status", "Monitoring"),
        ("down_metric", _FILE_METRIC[metric]),
        ("ChannelName", word),
        ("reference_id", reference_id),
    )


def _history_path(channel: Channel) -> str:
    return f"/perfmon_{channel.lower().split('-')[0]}_stat"


_STATES: Final[tuple[str, Fields]] = ("/channels_thresholdValue", (("tgrp", "-1"),))

#: Every read that may be sent.
READS: Final[frozenset[tuple[str, Fields]]] = frozenset(
    {_STATES}
    | {("/get_chart_data", _chart_fields(channel, metric)) for channel, metric in product(CHANNELS, METRICS)}
    | {(_history_path(channel), _history_fields(channel, metric)) for channel, metric in product(CHANNELS, METRICS)}
)


@dataclass(frozen=True, slots=True)
class AllowedRequest:
    """
    A request that may be sent; the constructor raises ValueError for any other. `label` names it in errors. The fields of a log-in
    contain the password, so `repr` leaves them out.
    """

    path: str
    fields: Fields = field(repr=False)
    label: str = ""

    def __post_init__(self) -> None:
        if (self.path, self.fields) not in READS and not _is_login(self.path, self.fields):
            raise ValueError(f"{self.path}: this request is not on the list of requests that may be sent")


def _is_login(path: str, fields: Fields) -> bool:
    names = [name for name, _ in fields[:3]]
    return (
        path == LOGIN_PATH
        and names == ["txtuname", "txtpasswd", "action"]
        and fields[2][1] == "applylogin"
        and len(fields) <= 4
        and all(is_token(name, value) for name, value in fields[3:])
    )


def channel_states() -> AllowedRequest:
    path, fields = _STATES
    return AllowedRequest(path, fields, path)


def chart(channel: Channel, metric: Metric) -> AllowedRequest:
    """The last ten minutes of one metric."""
    path = "/get_chart_data"
    return AllowedRequest(path, _chart_fields(channel, metric), f"{path} ({channel} {metric})")


def history(channel: Channel, metric: Metric) -> AllowedRequest:
    """The last 24 hours of one metric, as a file."""
    path = _history_path(channel)
    return AllowedRequest(path, _history_fields(channel, metric), f"{path} ({channel} {metric})")


def login(username: str, password: str, token: tuple[str, str] | None) -> AllowedRequest:
    """The log-in. `token`: name and value of the log-in page's hidden field, if it has one."""
    fields = (("txtuname", username), ("txtpasswd", password), ("action", "applylogin"))
    return AllowedRequest(LOGIN_PATH, fields + ((token,) if token else ()), LOGIN_PATH)


def _sha256(text: str) -> str:
    digits = text.replace(":", "").lower()
    if not re.fullmatch("[0-9a-f]{64}", digits):
        raise ValueError(
            "give the SHA-256 of the grandmaster's certificate: 64 hexadecimal digits, with or without colons"
        )
    return digits


def _certificates(path: Path) -> Path:
    try:
        read_file(path)  # OpenSSL would wait for ever for a FIFO's writer
        ssl.create_default_context(cafile=path)
    except OSError as error:
        raise ValueError(f"cannot read PEM certificates from this file: {error.strerror or error}") from error
    return path


class WebOptions(Section):
    """
    The grandmaster's certificate is verified in one of three ways: `ca`, a file of CA certificates; `fingerprint`, the SHA-256 of the
    certificate; `insecure = true`, not at all. `channels` None: every monitored channel that has a time error. `timeout_s` is for a
    whole poll.
    """

    port: Port = 443
    username: Annotated[str, Field(min_length=1)]
    password: SecretSettings
    ca: Annotated[FilePath, AfterValidator(_certificates)] | None = None
    fingerprint: Annotated[str, AfterValidator(_sha256)] | None = None
    insecure: bool = False
    channels: Annotated[tuple[Channel, ...], Strict(False), Field(min_length=1)] | None = None
    interval_s: Annotated[float, Field(ge=10, le=3600)] = 60.0
    timeout_s: Annotated[float, Field(ge=2, le=60)] = 10.0
    fill_history: bool = True

    @model_validator(mode="after")
    def _one_verification(self) -> WebOptions:
        if (self.ca is not None) + (self.fingerprint is not None) + self.insecure != 1:
            raise ValueError("give exactly one of ca, fingerprint, insecure = true")
        return self

    @property
    def warnings(self) -> tuple[str, ...]:
        """Settings that are permitted but insecure, each as a sentence with the remedy."""
        warning = "insecure = true: the certificate is not verified, so an attacker on the path can read the password; pin a fingerprint"
        return (warning,) if self.insecure else ()


#: The factory password, as salted scrypt: the configured password is compared with it, and it is never tried.
_SALT = bytes.fromhex("a4398e1e6388f55a17d39e5da2282148")
_FACTORY_PASSWORD = bytes.fromhex("5d25d5faf92b8451eb81fc8b973ec48f7d47af5800fc0f0dcb9c393a2a5d061c")


def hashed(password: str) -> bytes:
    """The password's scrypt hash, which takes about 50 ms on purpose."""
    return hashlib.scrypt(password.encode(), salt=_SALT, n=2**14, r=8, p=1, dklen=32)


def uses_factory_password(password: SecretStr) -> bool:
    """Whether the configured password is the factory password."""
    return hmac.compare_digest(hashed(password.get_secret_value()), _FACTORY_PASSWORD)
