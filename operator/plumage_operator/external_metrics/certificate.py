"""How long the certificate is good for that external metrics are served with, and what is said of it. Pure.

One that expired looks well from here: the listener goes on, and it is the API server that refuses it. Then
HorizontalPodAutoscalers get no figure and hold, which nobody notices until there is load. So it is said before.
"""

from __future__ import annotations

from datetime import UTC, datetime
from enum import Enum
from typing import Final

from cryptography import x509

__all__ = ["SOON", "State", "expiry", "said_of", "state_of"]

SOON: Final = 7 * 86_400.0  # seconds; the chart's alert PlumageExternalMetricsCertificateExpires has it too
_RENEW: Final = "renew externalMetrics.tls.existingSecret, or delete the chart's own Secret and helm upgrade"


class State(Enum):
    """Of a certificate."""

    GOOD = "good"
    SOON = "soon"
    EXPIRED = "expired"


def expiry(chain: bytes) -> float | None:
    """When the first of a PEM file's certificates expires, in seconds since 1970: one link is enough. None where they
    can't be read, of which TLS has its own word."""
    try:
        return min(one.not_valid_after_utc.timestamp() for one in x509.load_pem_x509_certificates(chain))
    except ValueError:
        return None


def state_of(expires: float, now: float) -> State:
    """now: seconds since 1970, as expires is."""
    if expires <= now:
        return State.EXPIRED
    return State.SOON if expires - now < SOON else State.GOOD


def said_of(state: State, expires: float) -> str:
    """A line for the log."""
    date = datetime.fromtimestamp(expires, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    match state:
        case State.GOOD:
            return f"the certificate is good until {date}"
        case State.SOON:
            return f"the certificate expires soon, at {date}: {_RENEW}"
        case State.EXPIRED:
            return f"the certificate has expired, at {date}, and the API server refuses it: {_RENEW}"
