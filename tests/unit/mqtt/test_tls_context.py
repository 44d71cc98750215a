"""What TLS to the broker is made of, and which key of the configuration is to blame when it cannot be."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from authority import Authority
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from timesyncd.config import MqttSettings
from timesyncd.errors import ConfigError
from timesyncd.mqtt.tls import tls_context


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def settings(**more: object) -> MqttSettings:
    return MqttSettings.model_validate({"host": "broker.example", "tls": True} | more)


def test_without_tls_there_is_none() -> None:
    """Plain MQTT asks for nothing."""
    assert tls_context(settings(tls=False)) is None


def test_the_broker_is_always_verified(authority: Authority) -> None:
    """By its certificate and its name, and never by a protocol that is broken."""
    identity = authority.identity("n1")
    contexts = [
        tls_context(settings()),
        tls_context(settings(ca=authority.ca)),
        tls_context(settings(ca=authority.ca, certificate=identity.certificate, key=identity.key)),
    ]

    assert {(c.verify_mode, c.check_hostname, c.minimum_version) for c in contexts if c} == {
        (ssl.CERT_REQUIRED, True, ssl.TLSVersion.TLSv1_2)
    }
    assert None not in contexts


def test_our_ca_is_trusted_alone(authority: Authority) -> None:
    """Where a CA is configured, those of the system open nothing."""
    context = tls_context(settings(ca=authority.ca))

    assert context is not None
    assert [each["subject"] for each in context.get_ca_certs()] == [
        ((("organizationName", "test-ca"),), (("organizationalUnitName", "test-ca"),))
    ]


@pytest.mark.parametrize("content", [b"", b"no PEM", b"\xff\xfe\x00"])
def test_a_ca_file_without_a_certificate_is_an_error(tmp_path: Path, content: bytes) -> None:
    """An empty file would trust no broker."""
    path = tmp_path / "ca.pem"
    path.write_bytes(content)

    with pytest.raises(ConfigError, match=f"^mqtt.ca = '{path}': contains no certificate in PEM form"):
        tls_context(settings(ca=path))


@pytest.mark.parametrize("name", ["ca", "certificate", "key"])
def test_the_error_for_a_missing_file_names_its_key(tmp_path: Path, authority: Authority, name: str) -> None:
    """The error names the key, the file and the cause."""
    identity = authority.identity("n1")
    files = {"ca": authority.ca, "certificate": identity.certificate, "key": identity.key} | {name: tmp_path / "none"}

    with pytest.raises(ConfigError, match=f"^mqtt.{name} = '{tmp_path}/none': cannot be read: No such file"):
        tls_context(settings(**files))


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    """A wrong path is a wrong configuration, whatever is there."""
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        tls_context(settings(ca=tmp_path))


def test_a_key_of_another_certificate_is_an_error(authority: Authority) -> None:
    """Two files that do not belong together are named both."""
    one, other = authority.identity("n1"), authority.identity("n2")

    with pytest.raises(ConfigError, match=f"^mqtt.key = '{other.key}': .* mqtt.certificate = '{one.certificate}'"):
        tls_context(settings(certificate=one.certificate, key=other.key))


def test_an_encrypted_key_is_an_error(authority: Authority) -> None:
    """A daemon has no terminal for a pass phrase."""
    identity = authority.identity("n1")
    key = load_pem_private_key(identity.key.read_bytes(), None)
    sealed = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"phrase"))
    identity.key.write_bytes(sealed)

    with pytest.raises(ConfigError, match="is not an unencrypted key"):
        tls_context(settings(certificate=identity.certificate, key=identity.key))
