"""The certificate of a running engine: a change is used completely or not at all."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

import pytest
from support.port_certificates import PortCertificate

from plumage.errors import ConfigurationError
from plumage_engine.certificates import ReloadedContext, client_context, server_context


@pytest.fixture
def secret(tmp_path: Path) -> PortCertificate:
    return PortCertificate(tmp_path / "tls")


@pytest.fixture
def clients(tmp_path: Path) -> PortCertificate:
    return PortCertificate(tmp_path / "client")


def serving(secret: PortCertificate, clients: PortCertificate | None = None) -> ReloadedContext:
    authority = None if clients is None else clients.authority_file
    return server_context(secret.folder / "tls.crt", secret.folder / "tls.key", authority)


def shown(server: ReloadedContext, client: ssl.SSLContext) -> bytes:
    """The certificate that a client sees. Raises SSLError if either side refuses the other."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(back, there, server_hostname="127.0.0.1")
    answering = server.context.wrap_bio(there, back, server_side=True)
    for side in (asking, answering, asking, answering):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    seen = asking.getpeercert(binary_form=True)
    assert seen is not None
    return seen


def test_each_renewal_is_used(secret: PortCertificate) -> None:
    """The kubelet deletes the files of the previous version."""
    server = serving(secret)
    for _ in range(3):
        new = secret.renew()
        server.refresh()
        assert shown(server, secret.client()) == new


def test_unusable_pair_changes_nothing_and_is_logged_once(
    secret: PortCertificate, caplog: pytest.LogCaptureFixture
) -> None:
    server = serving(secret)
    before = shown(server, secret.client())
    (chain, _), (_, other_key) = secret.issue(), secret.issue()
    secret.put(chain, other_key)
    server.refresh()
    server.refresh()
    assert shown(server, secret.client()) == before
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "stay in force" in caplog.text
    assert "PRIVATE" not in caplog.text
    new = secret.renew()
    server.refresh()
    assert shown(server, secret.client()) == new


def test_missing_file_changes_nothing(secret: PortCertificate, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    server = serving(secret)
    before = shown(server, secret.client())
    key = (secret.folder / "..data").resolve() / "tls.key"
    key.rename(key.with_name("elsewhere"))
    server.refresh()
    assert shown(server, secret.client()) == before
    assert "No such file" in caplog.text


def test_clients_need_a_certificate_of_the_authority(
    secret: PortCertificate, clients: PortCertificate, tmp_path: Path
) -> None:
    server = serving(secret, clients)
    with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN_A_CERTIFICATE"):
        shown(server, secret.client())
    foreign = PortCertificate(tmp_path / "foreign")
    for own, accepted in ((foreign, False), (clients, True)):
        context = secret.client()
        context.load_cert_chain(own.folder / "tls.crt", own.folder / "tls.key")
        if accepted:
            assert shown(server, context)
        else:
            with pytest.raises(ssl.SSLCertVerificationError):
                shown(server, context)
    clients.change_authority()
    server.refresh()
    renewed = secret.client()
    renewed.load_cert_chain(clients.folder / "tls.crt", clients.folder / "tls.key")
    assert shown(server, renewed)


def test_unusable_files_are_refused_at_start(secret: PortCertificate) -> None:
    (chain, _), (_, other_key) = secret.issue(), secret.issue()
    secret.put(chain, other_key)
    with pytest.raises(ConfigurationError, match="KEY_VALUES_MISMATCH"):
        serving(secret)


@pytest.mark.parametrize(("host", "verifies"), [("127.0.0.1", False), ("::1", False), ("engine.example", True)])
def test_only_the_own_pod_is_not_verified(secret: PortCertificate, host: str, verifies: bool) -> None:
    made = client_context(host, secret.folder / "tls.crt", secret.folder / "tls.key").context
    assert (made.verify_mode is ssl.CERT_REQUIRED, made.check_hostname) == (verifies, verifies)
