"""Self-signed certificates, made anew at each start, as a unit ships with one."""

from __future__ import annotations

import ipaddress
import ssl
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Certificate:
    """`fingerprint` is the SHA-256 of the certificate in hexadecimal; `pem` holds no key."""

    pem: str
    fingerprint: str
    context: ssl.SSLContext


def self_signed(name: str, host: str) -> Certificate:
    """For a unit called `name` that answers at the address `host`."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=3_650))
        .add_extension(x509.SubjectAlternativeName(_names(name, host)), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(Encoding.PEM)
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Certificate(pem.decode(), certificate.fingerprint(hashes.SHA256()).hex(), _context(pem + secret))


def _names(name: str, host: str) -> list[x509.GeneralName]:
    try:
        return [x509.DNSName(name), x509.IPAddress(ipaddress.ip_address(host))]
    except ValueError:
        return [x509.DNSName(name), x509.DNSName(host)]


def _context(pem_with_key: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    with tempfile.NamedTemporaryFile() as file:
        file.write(pem_with_key)
        file.flush()
        context.load_cert_chain(file.name)
    return context
