"""Who a service account's token names: the pods of a pool know one another by what the kubelet projects into them.

Contract: a token counts when a key of the cluster's API server signed it, for our audience, within its time. Then its
subject is the caller, `system:serviceaccount:NAMESPACE:NAME`. The API server is not asked (decision 0120). So a token
of a deleted pod counts until it expires, an hour at most. The issuer is not compared: those keys sign service accounts'
tokens and nothing else. Pure: keys and clock are arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import jwt

from plumage.cluster import AUDIENCE
from plumage.errors import CallerRefusedError, ConfigurationError

__all__ = ["LEEWAY", "caller_of", "key_id_of", "parse_keys"]

LEEWAY: Final = 60.0  # seconds that two machines' clocks may differ
LONGEST: Final = 16_384  # characters of a token; the API server's own are about 1,200
_ALGORITHMS: Final = ("RS256", "RS384", "RS512", "ES256", "ES384", "ES512")  # those the API server signs with
_CHECKED_HERE: Final = {"verify_exp": False, "verify_nbf": False, "verify_iat": False, "verify_aud": False}


def parse_keys(data: Mapping[str, Any]) -> dict[str, jwt.PyJWK]:
    """The API server's keys (RFC 7517) by their ids; those of kinds unknown here are left out."""
    listed = data.get("keys")
    if not isinstance(listed, Sequence):
        raise ConfigurationError("the API server's keys are no JWK set")
    found: dict[str, jwt.PyJWK] = {}
    for entry in listed:
        try:
            key = jwt.PyJWK.from_dict(entry)
        except (jwt.PyJWTError, ValueError, TypeError, AttributeError):
            continue
        if key.key_id and key.key_type in ("RSA", "EC"):
            found[key.key_id] = key
    return found


def key_id_of(token: str) -> str:
    """The key that a token says it is signed with; nothing of it is proved yet."""
    if len(token) > LONGEST:
        raise CallerRefusedError(401, "the token is too long for a service account's")
    try:
        header = jwt.get_unverified_header(token)
    except jwt.PyJWTError as error:
        raise CallerRefusedError(401, "it is no service account's token (a JWT)") from error
    name = header.get("kid")
    if not isinstance(name, str) or not name:
        raise CallerRefusedError(401, "the token does not name the key that signed it")
    return name


def caller_of(token: str, keys: Mapping[str, jwt.PyJWK], now: float) -> str:
    """The service account's full name. now: seconds since 1970."""
    key = keys.get(key_id_of(token))
    if key is None:
        raise CallerRefusedError(401, "the token is signed with a key that this cluster's API server does not have")
    try:
        claims = jwt.decode(token, key, algorithms=_ALGORITHMS, options=_CHECKED_HERE)  # type: ignore[arg-type]
    except jwt.PyJWTError as error:
        raise CallerRefusedError(401, "the token's signature is wrong") from error
    _check_audience(claims.get("aud"))
    _check_time(claims, now)
    subject = claims.get("sub")
    if not isinstance(subject, str) or not subject.startswith("system:serviceaccount:"):
        raise CallerRefusedError(401, "the token names no service account")
    return subject


def _check_audience(given: object) -> None:
    audiences = [given] if isinstance(given, str) else given if isinstance(given, list) else []
    if AUDIENCE not in audiences:
        raise CallerRefusedError(
            401, f"the token is not for audience {AUDIENCE!r}: mount one with it (serviceAccountToken)"
        )


def _check_time(claims: Mapping[str, Any], now: float) -> None:
    """Checks the token's time. A wrong clock looks like a wrong token: the error names both, with the seconds."""
    expires, begins = _time(claims.get("exp")), _time(claims.get("nbf", 0))
    if now > expires + LEEWAY:
        late = int(now - expires)
        raise CallerRefusedError(401, f"the token expired {late} s ago: it was not reread, or the two clocks differ")
    if now < begins - LEEWAY:
        early = int(begins - now)
        raise CallerRefusedError(
            401, f"the token counts in {early} s only: this machine's clock is behind its issuer's"
        )


def _time(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    raise CallerRefusedError(401, "the token does not say until when it counts")
