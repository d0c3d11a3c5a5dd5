"""Which tokens prove the caller, and the errors for others."""

from __future__ import annotations

import base64
import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from plumage.errors import CallerRefusedError, ConfigurationError
from plumage.identity import LEEWAY, caller_of, key_id_of, parse_keys

NOW = 1_800_000_000.0
SUBJECT = "system:serviceaccount:shop:chat-engine"
RSA = rsa.generate_private_key(65_537, 2048)
EC = ec.generate_private_key(ec.SECP256R1())


def public(key: Any, kid: str, algorithm: str) -> dict[str, Any]:
    kind: Any = jwt.algorithms.RSAAlgorithm if algorithm.startswith("RS") else jwt.algorithms.ECAlgorithm
    return {**json.loads(kind.to_jwk(key.public_key())), "kid": kid, "alg": algorithm, "use": "sig"}


KEYS = parse_keys({"keys": [public(RSA, "one", "RS256"), public(EC, "two", "ES256")]})


def token(key: Any = RSA, algorithm: str = "RS256", kid: str | None = "one", **changes: Any) -> str:
    claims = {"sub": SUBJECT, "aud": ["plumage"], "exp": NOW + 600, "nbf": NOW - 5, "iat": NOW - 5, **changes}
    claims = {name: value for name, value in claims.items() if value is not None}
    return jwt.encode(claims, key, algorithm, headers={} if kid is None else {"kid": kid})


def refusal(given: str, now: float = NOW) -> CallerRefusedError:
    with pytest.raises(CallerRefusedError) as refused:
        caller_of(given, KEYS, now)
    assert given not in str(refused.value)
    return refused.value


@pytest.mark.parametrize(("key", "algorithm", "kid"), [(RSA, "RS256", "one"), (EC, "ES256", "two")])
def test_good_token_names_its_service_account(key: Any, algorithm: str, kid: str) -> None:
    assert caller_of(token(key, algorithm, kid), KEYS, NOW) == SUBJECT
    assert caller_of(token(key, algorithm, kid, aud="plumage"), KEYS, NOW) == SUBJECT


def test_clocks_may_differ_by_a_minute_and_an_expired_token_reports_its_age() -> None:
    assert caller_of(token(), KEYS, NOW + 600 + LEEWAY - 1) == SUBJECT
    assert caller_of(token(), KEYS, NOW - 5 - LEEWAY + 1) == SUBJECT
    assert "expired 3000 s ago" in str(refusal(token(), NOW + 3600))
    assert "counts in 3595 s" in str(refusal(token(), NOW - 3600))
    assert "clock" in str(refusal(token(), NOW - 3600))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"aud": ["https://kubernetes.default.svc"]}, "audience"),
        ({"aud": None}, "audience"),
        ({"aud": {"plumage": 1}}, "audience"),
        ({"exp": None}, "until when"),
        ({"exp": True}, "until when"),
        ({"sub": "somebody"}, "no service account"),
        ({"sub": None}, "no service account"),
    ],
)
def test_required_claims_of_a_token(changes: dict[str, Any], reason: str) -> None:
    refused = refusal(token(**changes))
    assert refused.status == 401
    assert reason in str(refused)


def test_foreign_signatures_are_refused() -> None:
    stranger = rsa.generate_private_key(65_537, 2048)
    assert "signature" in str(refusal(token(stranger)))
    assert "does not have" in str(refusal(token(kid="three")))
    assert "name the key" in str(refusal(token(kid=None)))
    assert "signature" in str(refusal(token(EC, "ES256", "one")))  # another kind of key under a known name


def test_missing_signature_and_public_key_as_secret_are_refused() -> None:
    unsigned = jwt.encode({"sub": SUBJECT, "aud": "plumage", "exp": NOW + 60}, "", "none", headers={"kid": "one"})
    assert refusal(unsigned).status == 401
    head = base64.urlsafe_b64encode(json.dumps({"alg": "HS256", "kid": "one"}).encode()).rstrip(b"=").decode()
    assert refusal(f"{head}.{token().split('.')[1]}.AAAA").status == 401


@pytest.mark.parametrize("nonsense", ["", "x", "a.b.c", "é.é.é", "." * 20_000, "A" * 100_000])
def test_nonsense_is_refused_with_a_message(nonsense: str) -> None:
    with pytest.raises(CallerRefusedError) as refused:
        key_id_of(nonsense)
    assert refused.value.status == 401


def test_keys_of_unknown_kinds_are_left_out() -> None:
    good = public(RSA, "one", "RS256")
    found = parse_keys({"keys": [{"kty": "OKP", "kid": "x"}, {}, {"kty": "oct", "k": "AAAA", "kid": "s"}, good]})
    assert list(found) == ["one"]
    for wrong in ({}, {"keys": 3}):
        with pytest.raises(ConfigurationError):
            parse_keys(wrong)
