"""A certificate authority for one test. Nothing outside the test trusts it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme

from timesyncd.simulation.bed.broker import CertificateFiles

_DAY = timedelta(days=1)


class Authority:
    """Signs certificates into `folder`; `ca` is the file of the authority's own certificate, which a peer trusts."""

    def __init__(self, folder: Path, name: str = "test-ca") -> None:
        self._folder = folder
        self._authority = trustme.CA(organization_name=name, organization_unit_name=name)
        self.ca = folder / f"{name}.pem"
        self._authority.cert_pem.write_to_path(str(self.ca))

    def identity(self, name: str, host: str | None = None, is_expired: bool = False) -> CertificateFiles:
        """For a server at `host`, a name or an address, or for a client called `name`; valid for one day more, or expired a day ago."""
        end = datetime.now(UTC) + (-_DAY if is_expired else _DAY)
        issued = self._authority.issue_cert(host or name, common_name=name, not_before=end - 2 * _DAY, not_after=end)
        files = CertificateFiles(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        issued.cert_chain_pems[0].write_to_path(str(files.certificate))
        files.key.touch(0o600)
        issued.private_key_pem.write_to_path(str(files.key))
        return files
