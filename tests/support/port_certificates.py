"""A router's certificate as a Secret's volume: the kubelet replaces both files in one step, by a link."""

from __future__ import annotations

import datetime
import itertools
import os
import ssl
from pathlib import Path

from cluster.certificates import Authority

DAY = datetime.timedelta(days=1)


class PortCertificate:
    """`tls.crt` and `tls.key` in a folder, for 127.0.0.1, and the authority that clients trust."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._authority = Authority.create("plumage-test-ports")
        self._numbers = itertools.count()
        folder.mkdir(parents=True)
        self._authority.write(folder, "ca")
        for name in ("tls.crt", "tls.key"):
            (folder / name).symlink_to(Path("..data", name))
        self.renew()

    @property
    def settings(self) -> dict[str, str]:
        """`listen.tls` of a router's settings."""
        return {"certificateFile": str(self.folder / "tls.crt"), "keyFile": str(self.folder / "tls.key")}

    @property
    def authority_file(self) -> Path:
        return self.folder / "ca.crt"

    def client(self) -> ssl.SSLContext:
        """Trusts the authority."""
        return ssl.create_default_context(cafile=self.authority_file)

    def server(self) -> ssl.SSLContext:
        """Shows the certificate that is in the volume now."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.folder / "tls.crt", self.folder / "tls.key")
        return context

    def issue(self, days: float = 30) -> tuple[bytes, bytes]:
        """A new certificate and its key, in no file of the volume."""
        folder = self.folder / f"issued-{next(self._numbers)}"
        folder.mkdir()
        self._authority.issue(folder, "tls", "router", ["127.0.0.1", "localhost"], days * DAY)
        return (folder / "tls.crt").read_bytes(), (folder / "tls.key").read_bytes()

    def renew(self, days: float = 30) -> bytes:
        """Puts a new pair into the volume. Returns the certificate in DER."""
        chain, key = self.issue(days)
        self.put(chain, key)
        return ssl.PEM_cert_to_DER_cert(chain.decode())

    def put(self, chain: bytes, key: bytes) -> None:
        """Replaces both files as the kubelet does."""
        version = self.folder / f"..{next(self._numbers)}"
        version.mkdir()
        (version / "tls.crt").write_bytes(chain)
        (version / "tls.key").write_bytes(key)
        fresh = self.folder / "..data_tmp"
        fresh.symlink_to(version.name)
        os.replace(fresh, self.folder / "..data")
