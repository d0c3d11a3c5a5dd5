"""Keys and certificates of a control plane: for servers, for the front proxy, and to sign service account tokens."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

__all__ = ["FRONT_PROXY", "Authority", "write_all"]

# Aggregated API servers are called by this name (`--requestheader-allowed-names`).
FRONT_PROXY = "front-proxy-client"
_DAY = datetime.timedelta(days=1)
_Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


@dataclass(frozen=True)
class Authority:
    """A certificate authority that lives for one run."""

    name: x509.Name
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def create(cls, name: str) -> Authority:
        subject, key = _subject(name), ec.generate_private_key(ec.SECP256R1())
        return cls(subject, key, _certificate(subject, key.public_key(), subject, key, authority=True))

    @classmethod
    def read(cls, folder: Path, file: str) -> Authority:
        """The authority that `write` wrote, with its key."""
        certificate = x509.load_pem_x509_certificate((folder / f"{file}.crt").read_bytes())
        key = serialization.load_pem_private_key((folder / f"{file}.key").read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey), "as create makes it"
        return cls(certificate.subject, key, certificate)

    def issue(
        self, folder: Path, file: str, name: str, hosts: Iterable[str] = (), lasts: datetime.timedelta = 30 * _DAY
    ) -> None:
        """Writes `FILE.crt` and `FILE.key` for `name`, valid for a server at `hosts` and for a client. lasts: from now;
        negative for an expired certificate."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _certificate(_subject(name), key.public_key(), self.name, self.key, hosts=hosts, lasts=lasts)
        _write(folder / f"{file}.crt", certificate.public_bytes(serialization.Encoding.PEM))
        _write_key(folder / f"{file}.key", key)

    def write(self, folder: Path, file: str) -> None:
        """Writes `FILE.crt` and `FILE.key`."""
        _write(folder / f"{file}.crt", self.certificate.public_bytes(serialization.Encoding.PEM))
        _write_key(folder / f"{file}.key", self.key)


def write_all(folder: Path, addresses: Iterable[str]) -> None:
    """Writes all that `control_plane.py` names: ca, apiserver, front-proxy-ca, front-proxy (.crt, .key), sa.key."""
    folder.mkdir(parents=True, exist_ok=True)
    authority, front_proxy = Authority.create("plumage-test"), Authority.create("plumage-test-front-proxy")
    authority.write(folder, "ca")
    service = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"]
    authority.issue(folder, "apiserver", "kube-apiserver", [*addresses, "localhost", *service])
    front_proxy.write(folder, "front-proxy-ca")
    front_proxy.issue(folder, "front-proxy", FRONT_PROXY)
    _write_key(folder / "sa.key", rsa.generate_private_key(public_exponent=65537, key_size=2048))


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _certificate(
    subject: x509.Name,
    key: ec.EllipticCurvePublicKey,
    issuer: x509.Name,
    signer: ec.EllipticCurvePrivateKey,
    *,
    authority: bool = False,
    hosts: Iterable[str] = (),
    lasts: datetime.timedelta = 30 * _DAY,
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)  # a test may run a program with a clock that is an hour off
        .not_valid_after(now + lasts)
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    if not authority:
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    names = [_name(host) for host in hosts]
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(signer, hashes.SHA256())


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write_key(path: Path, key: _Key) -> None:
    content = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )
    _write(path, content)


def _write(path: Path, content: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(content)
