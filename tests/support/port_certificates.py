"""A certificate as a Secret's volume: the kubelet replaces all files in one step, by a link."""

from __future__ import annotations

import datetime
import itertools
import os
import shutil
import ssl
from collections.abc import Iterable
from pathlib import Path

from cluster.certificates import Authority

DAY = datetime.timedelta(days=1)


class PortCertificate:
    """`tls.crt` and `tls.key` in a folder, for `hosts`, and in `ca.crt` the authority that the other side trusts."""

    def __init__(self, folder: Path, hosts: Iterable[str] = ("127.0.0.1", "localhost")) -> None:
        self.folder = folder
        self._hosts = tuple(hosts)
        self._authority = Authority.create("plumage-test-ports")
        self._numbers = itertools.count()
        folder.mkdir(parents=True)
        for name in ("tls.crt", "tls.key", "ca.crt"):
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

    def server(self, clients: PortCertificate | None = None) -> ssl.SSLContext:
        """Shows the certificate that is in the volume now. clients: whose certificates it asks for; None for none."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.folder / "tls.crt", self.folder / "tls.key")
        if clients is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(clients.authority_file)
        return context

    def issue(self, days: float = 30) -> tuple[bytes, bytes]:
        """A new certificate and its key, in no file of the volume."""
        folder = self.folder / f"issued-{next(self._numbers)}"
        folder.mkdir()
        self._authority.issue(folder, "tls", "router", self._hosts, days * DAY)
        return (folder / "tls.crt").read_bytes(), (folder / "tls.key").read_bytes()

    def renew(self, days: float = 30) -> bytes:
        """Puts a new pair into the volume. Returns the certificate in DER."""
        chain, key = self.issue(days)
        self.put(chain, key)
        return ssl.PEM_cert_to_DER_cert(chain.decode())

    def change_authority(self) -> None:
        """Puts a new pair of a new authority into the volume, with the authority."""
        self._authority = Authority.create("plumage-test-ports")
        self.renew()

    def put(self, chain: bytes, key: bytes, authority: bytes | None = None) -> None:
        """Replaces all files as the kubelet does, and deletes the previous ones. authority: the own one by default."""
        version = self.folder / f"..{next(self._numbers)}"
        version.mkdir()
        self._authority.write(version, "ca")
        (version / "ca.key").unlink()  # no Secret has it
        if authority is not None:
            (version / "ca.crt").write_bytes(authority)
        (version / "tls.crt").write_bytes(chain)
        (version / "tls.key").write_bytes(key)
        before = (self.folder / "..data").resolve()
        fresh = self.folder / "..data_tmp"
        fresh.symlink_to(version.name)
        os.replace(fresh, self.folder / "..data")
        if before.name != "..data":
            shutil.rmtree(before)
