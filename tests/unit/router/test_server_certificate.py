"""The certificate of a port: a pair is used completely or not at all, and each change counts once."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from support.port_certificates import PortCertificate

from plumage.errors import ConfigurationError
from plumage.settings.router_config import TlsConfig
from plumage_router.process.server_certificate import ServerCertificate


@pytest.fixture
def secret(tmp_path: Path) -> PortCertificate:
    return PortCertificate(tmp_path / "tls")


def load(secret: PortCertificate) -> ServerCertificate:
    return ServerCertificate(TlsConfig.model_validate(secret.settings))


def test_old_protocols_are_off(secret: PortCertificate) -> None:
    context = load(secret).context
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert context.verify_mode is ssl.CERT_NONE
    assert context.options & ssl.OP_NO_RENEGOTIATION


def test_new_pair_gets_a_new_context(secret: PortCertificate) -> None:
    certificate = load(secret)
    before, expires = certificate.context, certificate.expires
    certificate.refresh()
    assert certificate.context is before
    secret.renew(days=60)
    certificate.refresh()
    assert certificate.context is not before
    assert certificate.expires == pytest.approx(expires + 30 * 86_400, abs=60)


@pytest.mark.parametrize("missing", ["tls.crt", "tls.key"])
def test_missing_file_counts_once(secret: PortCertificate, missing: str, caplog: pytest.LogCaptureFixture) -> None:
    certificate, context = (loaded := load(secret)), loaded.context
    present = (secret.folder / "..data").resolve()
    (present / missing).rename(present / "elsewhere")
    for _ in range(3):
        certificate.refresh()
    assert (certificate.failures, certificate.context) == (1, context)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    (present / "elsewhere").rename(present / missing)
    certificate.refresh()
    assert (certificate.failures, certificate.error) == (1, None)


def test_second_unusable_pair_counts_again(secret: PortCertificate) -> None:
    certificate = load(secret)
    for _ in range(2):
        (chain, _), (_, key) = secret.issue(), secret.issue()
        secret.put(chain, key)
        certificate.refresh()
        certificate.refresh()
    assert certificate.failures == 2
    assert "do not belong together" in str(certificate.error)


def test_half_written_files_are_not_read(secret: PortCertificate, tmp_path: Path) -> None:
    """Of a folder that no kubelet replaces: the new certificate is there before its key."""
    chain, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    for path, content in zip((chain, key), secret.issue(), strict=True):
        path.write_bytes(content)
    certificate = ServerCertificate(TlsConfig(certificate_file=chain, key_file=key))
    context, (new_chain, new_key) = certificate.context, secret.issue(60)
    chain.write_bytes(new_chain)
    certificate.refresh()
    key.write_bytes(new_key)
    certificate.refresh()
    certificate.refresh()
    assert certificate.context is not context
    assert certificate.error is None


def test_key_with_passphrase_is_refused(secret: PortCertificate) -> None:
    chain, key = secret.issue()
    locked = load_pem_private_key(key, None).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")
    )
    secret.put(chain, locked)
    with pytest.raises(ConfigurationError, match="the key has a passphrase"):
        load(secret)


def test_mismatched_pair_is_refused_at_start(secret: PortCertificate) -> None:
    (chain, _), (_, key) = secret.issue(), secret.issue()
    secret.put(chain, key)
    with pytest.raises(ConfigurationError, match="they do not belong together"):
        load(secret)


def test_expired_certificate_is_served_and_reported(secret: PortCertificate, caplog: pytest.LogCaptureFixture) -> None:
    secret.renew(days=-0.5)
    assert load(secret).context is not None
    assert "has expired" in caplog.text
