"""The keys of a TimeProvider's web interface in the configuration."""

from __future__ import annotations

import re
import ssl
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from timesyncd.drivers.timeprovider._web_requests import Channel
from timesyncd.sections import Port, Secret, Section


def _sha256(written: str) -> str:
    digits = written.replace(":", "").lower()
    if not re.fullmatch("[0-9a-f]{64}", digits):
        raise ValueError("the SHA-256 of the unit's certificate is wanted: 64 hexadecimal digits, colons allowed")
    return digits


def _certificates(path: Path) -> Path:
    try:
        ssl.create_default_context(cafile=path)
    except OSError as error:
        raise ValueError(f"no certificates in PEM can be read there: {error.strerror or error}") from error
    return path


class WebOptions(Section):
    """
    How the unit proves who it is is one of three: `ca`, a file of certificates that signed the unit's; `fingerprint`, the SHA-256
    of the unit's own; `insecure = true`, it need not. `channels` None: every channel that the unit monitors and that has a time
    error. `timeout_s` is for a whole poll.
    """

    port: Port = 443
    username: Annotated[str, Field(min_length=1)]
    password: Secret
    ca: Annotated[Path, AfterValidator(_certificates)] | None = None
    fingerprint: Annotated[str, AfterValidator(_sha256)] | None = None
    insecure: bool = False
    channels: Annotated[tuple[Channel, ...], Field(min_length=1)] | None = None
    interval_s: Annotated[float, Field(ge=10, le=3600)] = 60.0
    timeout_s: Annotated[float, Field(ge=2, le=60)] = 10.0
    fill_history: bool = True

    @model_validator(mode="after")
    def _one_proof(self) -> WebOptions:
        if (self.ca is not None) + (self.fingerprint is not None) + self.insecure != 1:
            raise ValueError("give exactly one of ca, fingerprint, insecure = true")
        return self

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is allowed and yet unwise."""
        told = "insecure = true: the certificate is not checked, so whoever stands between reads the password: pin a fingerprint"
        return (told,) if self.insecure else ()
