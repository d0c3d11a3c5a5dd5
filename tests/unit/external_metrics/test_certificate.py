"""The validity of the external-metrics certificate: the end of a chain, its states, and its metric."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from cluster.certificates import Authority
from cryptography import x509

from plumage_operator.external_metrics.tls import SOON, CertificateState, describe_certificate, expiry, state_of
from plumage_operator.observability.metrics import Metrics

END = 1_800_000_000.0
NAME = "plumage_operator_external_metrics_certificate_expiry_timestamp_seconds"


def test_chain_ends_with_its_first_expiring_certificate(tmp_path: Path) -> None:
    authority = Authority.create("serving")
    ends = []
    for name, days in (("leaf", 20), ("link", 3)):
        authority.issue(tmp_path, name, name, lasts=datetime.timedelta(days=days))
        read = x509.load_pem_x509_certificate((tmp_path / f"{name}.crt").read_bytes())
        ends.append(read.not_valid_after_utc.timestamp())
    leaf, link = ((tmp_path / f"{name}.crt").read_bytes() for name in ("leaf", "link"))
    assert expiry(leaf) == ends[0]
    assert expiry(leaf + link) == expiry(link + leaf) == ends[1] < ends[0]


@pytest.mark.parametrize(
    "text", [b"", b"no certificate", b"-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----"]
)
def test_unreadable_certificate_has_no_end(text: bytes) -> None:
    assert expiry(text) is None


@pytest.mark.parametrize(
    ("left", "state"),
    [
        (SOON, CertificateState.GOOD),
        (SOON - 1, CertificateState.SOON),
        (1, CertificateState.SOON),
        (0, CertificateState.EXPIRED),
        (-1, CertificateState.EXPIRED),
    ],
)
def test_states_change_seven_days_before_the_end_and_at_it(left: float, state: CertificateState) -> None:
    assert SOON == 7 * 24 * 3600
    assert state_of(END, END - left) is state


def test_message_has_the_time_and_a_remedy() -> None:
    for state in CertificateState:
        assert "2027-01-15T08:00:00Z" in describe_certificate(state, END)
        assert ("renew" in describe_certificate(state, END)) is (state is not CertificateState.GOOD)


def test_operator_without_certificate_has_no_such_metric() -> None:
    metrics = Metrics()
    assert NAME not in metrics.page(pools=0, waiting=0, oldest=0)
    metrics.certificate_expires = END
    assert f"# TYPE {NAME} gauge\n{NAME} 1800000000\n" in metrics.page(pools=0, waiting=0, oldest=0)
