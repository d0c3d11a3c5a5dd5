"""What a router trusts of engines: settings that cannot work, and the context for the next connection."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from support.port_certificates import PortCertificate

from plumage.errors import ConfigurationError
from plumage.settings.router_config import EngineTlsConfig
from plumage_router.process.engine_tls import UNVERIFIED, EngineTls

NAME = "chat-engine.default.svc"


@pytest.fixture
def secret(tmp_path: Path) -> PortCertificate:
    return PortCertificate(tmp_path / "tls", [NAME])


def load(secret: PortCertificate, **more: Any) -> EngineTls:
    settings = {"caFile": str(secret.authority_file), "serverName": NAME, **more}
    return EngineTls(EngineTlsConfig.model_validate(settings))


def test_engines_are_verified_by_name(secret: PortCertificate) -> None:
    tls = load(secret)
    assert (tls.context.verify_mode, tls.context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert tls.context.minimum_version is ssl.TLSVersion.TLSv1_3
    assert (tls.server_name, tls.expires) == (NAME, None)


def test_own_certificate_has_an_end(secret: PortCertificate) -> None:
    tls = load(secret, **secret.settings)
    before, context = tls.expires, tls.context
    assert before is not None
    secret.renew(days=60)
    tls.refresh()
    assert tls.context is not context
    assert tls.expires == pytest.approx(before + 30 * 86_400, abs=60)


def test_certificate_alone_is_an_authority(secret: PortCertificate) -> None:
    """As of an issuer that is no root, or of a certificate that signed itself."""
    chain, key = secret.issue()
    secret.put(chain, key, authority=chain)
    tls = load(secret)
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = tls.context.wrap_bio(back, there, server_hostname=NAME)
    answering = secret.server().wrap_bio(there, back, server_side=True)
    for side in (asking, answering, asking):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    assert asking.getpeercert(binary_form=True) == ssl.PEM_cert_to_DER_cert(chain.decode())


def test_half_a_pair_is_refused(secret: PortCertificate) -> None:
    with pytest.raises(ValidationError, match="certificateFile and keyFile must be set together"):
        load(secret, certificateFile="/tls.crt")


@pytest.mark.parametrize(
    ("authority", "message"),
    [(b"", "is empty"), (b"no certificate\n", "has no certificates to trust")],
)
def test_unusable_authority_is_refused_at_start(secret: PortCertificate, authority: bytes, message: str) -> None:
    secret.put(*secret.issue(), authority=authority)
    with pytest.raises(ConfigurationError, match=message):
        load(secret)


def test_missing_file_is_named_and_logged_once(secret: PortCertificate, caplog: pytest.LogCaptureFixture) -> None:
    tls = load(secret)
    context = tls.context
    (secret.folder / "..data" / "ca.crt").unlink()
    for _ in range(3):
        tls.refresh()
    assert (tls.context, tls.failures) == (context, 1)
    assert "ca.crt" in str(tls.error)
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_nothing_is_verified_without_settings() -> None:
    assert (UNVERIFIED.context.verify_mode, UNVERIFIED.server_name) == (ssl.CERT_NONE, None)
