"""The errors that clients get, in the form of their API, and the reasons for which an attempt on a replica fails.

A 4xx status means that the request must change; `param` names the field. A 5xx status means that the request is fine;
`retry_after` says when to send it again. A message never contains an engine's answer or address, and only a little of
what the client sent: `RequestError` bounds its text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import orjson

from plumage.errors import PlumageError

__all__ = [
    "TLS_FAILURES",
    "Failure",
    "RequestError",
    "bad_field",
    "bad_header",
    "bad_request",
    "body_too_large",
    "class_refused",
    "engines_failed",
    "engines_silent",
    "error_event",
    "error_object",
    "internal",
    "model_refused",
    "no_replica",
    "objective_missed",
    "over_quota",
    "overloaded",
    "quarantined",
    "queue_full",
    "response_away",
    "response_not_found",
    "retry_budget_spent",
    "unauthorized",
    "unknown_model",
    "unknown_response",
    "upstream_failed",
]

_MAX_MESSAGE: Final = 1024  # characters
_MAX_PARAM: Final = 128
_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    502: "server_error",
    503: "service_unavailable",
    504: "timeout_error",
}
_ANTHROPIC: Final = b"/v1/messages"
_RESPONSES: Final = b"/v1/responses"
_ANTHROPIC_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class Failure(StrEnum):
    """Why an attempt on a replica failed. The value is a metric label; `text` is the sentence for people."""

    CONNECT_REFUSED = "connect_refused"
    CONNECT_FAILED = "connect_failed"
    CONNECT_TIMEOUT = "connect_timeout"
    CERTIFICATE_EXPIRED = "certificate_expired"
    CERTIFICATE_NAME = "certificate_name"
    CERTIFICATE_UNTRUSTED = "certificate_untrusted"
    CLIENT_CERTIFICATE_REFUSED = "client_certificate_refused"
    TLS_FAILED = "tls_failed"
    CONNECTION_LOST = "connection_lost"
    UNREADABLE_ANSWER = "unreadable_answer"
    KEY_REFUSED = "key_refused"
    HTTP_500 = "http_500"
    HTTP_502 = "http_502"
    HTTP_503 = "http_503"
    HTTP_504 = "http_504"
    HTTP_5XX = "http_5xx"
    ENGINE_STALLED = "engine_stalled"
    HEALTH_CHECK_FAILED = "health_check_failed"
    FIRST_BYTE_TIMEOUT = "first_byte_timeout"
    STREAM_TIMEOUT = "stream_timeout"

    @property
    def text(self) -> str:
        """For example: "the connection was refused"."""
        return _FAILURE_TEXTS[self]


TLS_FAILURES: Final = frozenset(
    {
        Failure.CERTIFICATE_EXPIRED,
        Failure.CERTIFICATE_NAME,
        Failure.CERTIFICATE_UNTRUSTED,
        Failure.CLIENT_CERTIFICATE_REFUSED,
        Failure.TLS_FAILED,
    }
)
"""The replica's certificate, or the router's own, is at fault, and no request."""

_FAILURE_TEXTS: Final = {
    Failure.CONNECT_REFUSED: "the connection was refused",
    Failure.CONNECT_FAILED: "it could not be reached",
    Failure.CONNECT_TIMEOUT: "connecting took too long",
    Failure.CERTIFICATE_EXPIRED: (
        "its certificate has expired or is not valid yet; renew the one in spec.engine.tls.secretName"
    ),
    Failure.CERTIFICATE_NAME: (
        "its certificate has another name; spec.engine.tls.secretName needs one for the DNS name "
        "NAME-engine.NAMESPACE.svc of the pool"
    ),
    Failure.CERTIFICATE_UNTRUSTED: (
        "its certificate is not trusted; ca.crt in spec.engine.tls.secretName must have its authority"
    ),
    Failure.CLIENT_CERTIFICATE_REFUSED: (
        "it does not accept this router's certificate; tls.crt in spec.engine.tls.clientSecretName must be valid, and "
        "of the authority in its ca.crt"
    ),
    Failure.TLS_FAILED: "the TLS handshake failed; its port may serve plain HTTP",
    Failure.CONNECTION_LOST: "the connection was lost",
    Failure.UNREADABLE_ANSWER: "its answer could not be read",
    Failure.KEY_REFUSED: "it does not accept this router's key",
    Failure.HTTP_500: "it answered 500",
    Failure.HTTP_502: "it answered 502",
    Failure.HTTP_503: "it answered 503",
    Failure.HTTP_504: "it answered 504",
    Failure.HTTP_5XX: "it answered 5xx",
    Failure.ENGINE_STALLED: "its engine is stalled",
    Failure.HEALTH_CHECK_FAILED: "its health check fails",
    Failure.FIRST_BYTE_TIMEOUT: "its first byte is late",
    Failure.STREAM_TIMEOUT: "its stream stopped",
}


def error_object(
    status: int, message: str, *, code: str | None = None, param: str | None = None, target: bytes = b""
) -> bytes:
    """Returns the JSON body of an error. Anthropic's API has a form of its own, all others OpenAI's.

    target: of the request.
    """
    if target.startswith(_ANTHROPIC):
        kind = _ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
        return orjson.dumps({"type": "error", "error": {"type": kind, "message": message}})
    kind = _TYPES.get(status, "invalid_request_error")
    return orjson.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}})


def error_event(status: int, message: str, *, code: str, target: bytes) -> bytes:
    """Returns an error as the last event of a stream."""
    if target.startswith(_RESPONSES):
        event = {"type": "error", "code": code, "message": message, "param": None, "sequence_number": 0}
        return b"event: error\ndata: %b\n\n" % orjson.dumps(event)
    name = b"event: error\n" if target.startswith(_ANTHROPIC) else b""
    return b"%bdata: %b\n\n" % (name, error_object(status, message, code=code, target=target))


class RequestError(PlumageError):
    """One request is refused. The code that reads or routes it raises this; the connection's owner sends it."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        message = _cut(message, _MAX_MESSAGE)
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = None if param is None else _cut(param, _MAX_PARAM)
        self.retry_after = retry_after

    def body(self, target: bytes = b"") -> bytes:
        """Returns the body of the answer. target: of the refused request, if it is known."""
        return error_object(self.status, self.message, code=self.code, param=self.param, target=target)

    def headers(self, request_id: str) -> bytes:
        """Returns the header lines of the answer."""
        lines = b"content-type: application/json\r\nx-request-id: %b\r\n" % request_id.encode()
        if self.status == 401:
            lines += b"www-authenticate: Bearer\r\n"
        if self.retry_after is not None:
            lines += b"retry-after: %d\r\n" % self.retry_after
        return lines


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[:most] + "…"


def bad_request(message: str, *, code: str) -> RequestError:
    return RequestError(400, message, code=code)


def bad_field(param: str, message: str, *, code: str) -> RequestError:
    """Returns the error for a field `param` that is wrong or not allowed."""
    return RequestError(400, f"{_cut(param, _MAX_PARAM)}: {message}", code=code, param=param)


def bad_header(name: str, message: str) -> RequestError:
    """Returns the error for a wrong header. name: as people write it."""
    return RequestError(400, f"{name}: {message}.", code="invalid_header")


def body_too_large(most: int) -> RequestError:
    """most: bytes that a body may have."""
    return RequestError(413, f"The body is larger than {most} bytes.", code="body_too_large")


def class_refused(message: str) -> RequestError:
    return RequestError(403, message, code="class_refused")


def model_refused(name: str, allowed: Sequence[str]) -> RequestError:
    """allowed: the models that the key may use."""
    message = f"This key may not use the model {name!r}. It may use {', '.join(allowed)}."
    return RequestError(403, message, code="model_refused", param="model")


def unauthorized(message: str) -> RequestError:
    return RequestError(401, message, code="invalid_api_key")


def unknown_model(name: str, served: str) -> RequestError:
    message = f"The model {name!r} does not exist here; this pool serves {served!r}."
    return RequestError(404, message, code="model_not_found", param="model")


def overloaded(message: str) -> RequestError:
    return RequestError(503, message, code="overloaded", retry_after=1)


def queue_full(retry_after: int) -> RequestError:
    message = f"Too many requests wait for a replica. Send it again in {retry_after} s."
    return RequestError(429, message, code="queue_full", retry_after=retry_after)


def objective_missed(wait: float, retry_after: int) -> RequestError:
    """wait: seconds that the request would wait, or has waited."""
    message = (
        f"The request cannot start in the time that its class or its X-Plumage-TTFT-Milliseconds allows: the wait is "
        f"about {wait:.1f} s. Send it again in {retry_after} s, or allow a longer time."
    )
    return RequestError(429, message, code="objective_missed", retry_after=retry_after)


def over_quota(reason: str, limit: str, most: int, retry_after: int | None) -> RequestError:
    """Returns the error for a request over a tenant's limit. retry_after: None if it can never fit."""
    after = "" if retry_after is None else f" Send it again in {retry_after} s."
    return RequestError(
        429, f"{reason}: {limit} is {most}.{after}", code="rate_limit_exceeded", retry_after=retry_after
    )


def no_replica(reason: str) -> RequestError:
    return RequestError(503, f"No replica can take the request: {reason}.", code="no_replica", retry_after=1)


def adapter_missing(name: str) -> RequestError:
    """No replica has loaded the adapter: it is new, or cannot be loaded."""
    message = f"No replica has loaded the adapter {name!r} yet. Send it again in 5 s."
    return RequestError(503, message, code="adapter_not_loaded", param="model", retry_after=5)


def adapter_away(name: str, reason: str) -> RequestError:
    """reason: why no replica that has loaded the adapter can take the request."""
    message = f"No replica that has loaded the adapter {name!r} can take the request: {reason}."
    return RequestError(503, message, code="no_replica", retry_after=1)


def unknown_response() -> RequestError:
    message = (
        "No replica of this pool stores the previous response for this key. Send the whole conversation as `input`. "
        "Engines store responses only with VLLM_ENABLE_RESPONSES_API_STORE=1."
    )
    return RequestError(404, message, code="previous_response_not_found", param="previous_response_id")


class ResponseNotFoundError(RequestError):
    """No replica stores the response for this key. The body is vLLM's own, so clients of both need one rule."""

    def body(self, target: bytes = b"") -> bytes:
        error = {"message": self.message, "type": "invalid_request_error", "param": self.param, "code": self.status}
        return orjson.dumps({"error": error})


def response_not_found(name: str) -> RequestError:
    message = f"Response with id '{_cut(name, _MAX_PARAM)}' not found."
    return ResponseNotFoundError(404, message, code="response_not_found", param="response_id")


def response_away(reason: str, param: str) -> RequestError:
    """reason: why the replica that stores the response takes no request. param: what names the response."""
    message = f"The replica that stores the response takes no request: {reason}."
    return RequestError(503, message, code="no_replica", param=param, retry_after=1)


def internal() -> RequestError:
    """Returns the error for a bug in the router, whose log has the traceback."""
    return RequestError(500, "The router failed on this request.", code="internal")


def upstream_failed(failure: Failure, attempts: int) -> RequestError:
    """Every attempt failed, and none of the failures points to the request."""
    tried = "1 replica" if attempts == 1 else f"{attempts} replicas"
    message = f"The request failed on {tried}: {failure.text}."
    return RequestError(502, message, code="upstream_failed", retry_after=1)


def retry_budget_spent(failure: Failure, attempts: int) -> RequestError:
    """Too many requests of the pool fail: another attempt would only add load."""
    tried = "1 replica" if attempts == 1 else f"{attempts} replicas"
    message = (
        f"The request failed on {tried}: {failure.text}. No other replica gets it, because too many requests are "
        f"retried. Send it again in 1 s."
    )
    return RequestError(502, message, code="retry_budget", retry_after=1)


def engines_silent(failure: Failure, replicas: int) -> RequestError:
    """Replicas took the request and sent nothing. No `retry_after`: the same request may silence the next replica."""
    tried = "1 replica" if replicas == 1 else f"{replicas} replicas one after the other"
    message = f"The request waited on {tried} ({failure.text}). No other replica gets it: it may be the cause."
    return RequestError(502, message, code="upstream_silent")


def engines_failed(failure: Failure, replicas: int) -> RequestError:
    """Replicas failed after they got the request. No `retry_after`: the same request may fail the next replica."""
    tried = "1 replica" if replicas == 1 else f"{replicas} replicas"
    message = f"The request failed on {tried} ({failure.text}). No other replica gets it: it may be the cause."
    return RequestError(502, message, code="engines_failed")


def quarantined(seconds: float) -> RequestError:
    """Returns an error with a 4xx status, because clients repeat a request on their own after a 5xx."""
    wait = max(1, math.ceil(seconds))
    message = f"Engines failed on this request body. It is refused for {wait} s; change it, or wait."
    return RequestError(422, message, code="quarantined", retry_after=wait)
