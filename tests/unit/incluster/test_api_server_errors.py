"""All three clients of the API server read its refusals with one function."""

from __future__ import annotations

import json

import pytest

from plumage.api_server import ApiServerError, StatusObject, read_refusal
from plumage.errors import PlumageError
from plumage_operator.kube.errors import RefusedError, UnavailableError

QUOTA = {"kind": "Status", "status": "Failure", "message": "exceeded quota: pods", "reason": "Forbidden", "code": 403}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (json.dumps(QUOTA).encode(), StatusObject("exceeded quota: pods", "Forbidden")),
        (b'{"message": null, "code": 500}', StatusObject("", "")),
        (b"404 page not found\n", StatusObject("404 page not found", "")),
        (b"<html>\n  <b>502</b>" + b"x" * 1000, StatusObject("<html> <b>502</b>" + "x" * 181, "")),
        (b"\xff\xfe", StatusObject("\ufffd\ufffd", "")),
        (b"[1]", StatusObject("", "")),
        (b"", StatusObject("", "")),
    ],
)
def test_refusal_has_message_and_reason(body: bytes, expected: StatusObject) -> None:
    assert read_refusal(body) == expected


def test_operators_errors_are_errors_of_the_api_server() -> None:
    error = RefusedError("exceeded quota", 403, "Forbidden")
    assert isinstance(error, ApiServerError)
    assert (str(error), error.status, error.reason, error.after) == ("exceeded quota", 403, "Forbidden", None)
    assert UnavailableError("away", 429, after=3.0).after == 3.0
    assert isinstance(error, PlumageError), "the CLI prints it without a traceback"
