"""A certificate authority of our own, made anew for each test: what it signs is worth nothing elsewhere."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

_DAY = timedelta(days=1)


@dataclass(frozen=True)
class Identity:
    """The files of a certificate and of its key, in PEM form."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates into `folder`; `ca` is the file of its own, to be trusted."""

    def __init__(self, folder: Path, name: str = "test-ca") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _called(name)
        self.ca = folder / f"{name}.pem"
        lasting = (datetime.now(UTC) - _DAY, datetime.now(UTC) + _DAY)
        extensions: list[x509.ExtensionType] = [x509.BasicConstraints(ca=True, path_length=0)]
        self.ca.write_bytes(self._signed(self._name, self._key, lasting, extensions).public_bytes(Encoding.PEM))

    def identity(self, name: str, host: str | None = None, is_expired: bool = False) -> Identity:
        """For a server at `host`, a name or an address, or for a client called `name`."""
        key = ec.generate_private_key(ec.SECP256R1())
        end = datetime.now(UTC) + (-_DAY if is_expired else _DAY)
        extensions: list[x509.ExtensionType] = [x509.SubjectAlternativeName([_general(host or name)])]
        certificate = self._signed(_called(name), key, (end - 2 * _DAY, end), extensions)
        files = Identity(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        files.certificate.write_bytes(certificate.public_bytes(Encoding.PEM))
        files.key.touch(0o600)
        files.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return files

    def _signed(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        valid: tuple[datetime, datetime],
        extensions: list[x509.ExtensionType],
    ) -> x509.Certificate:
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(valid[0])
            .not_valid_after(valid[1])
        )
        for extension in extensions:
            builder = builder.add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
        return builder.sign(self._key, hashes.SHA256())


def _called(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
