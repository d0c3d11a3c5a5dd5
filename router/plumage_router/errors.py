"""What a client is told when it gets no answer: OpenAI's error object, with a status that says whose turn it is.

RequestError
├── status 4xx   the request must change; `param` names the field
├── status 5xx   nothing wrong with the request; `retry_after` says when to come back
A message never holds what an engine answered or where it lives.
"""

from __future__ import annotations

import math

import orjson

from plumage.errors import PlumageError

__all__ = [
    "RequestError",
    "bad_field",
    "bad_request",
    "engines_failed",
    "error_object",
    "fell_silent",
    "internal",
    "no_replica",
    "overloaded",
    "quarantined",
    "unauthorized",
    "unknown_model",
    "upstream_failed",
]

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    502: "server_error",
    503: "service_unavailable",
    504: "timeout_error",
}


def error_object(status: int, message: str, *, code: str | None = None, param: str | None = None) -> bytes:
    """The JSON body of an error, as OpenAI's clients read it."""
    kind = _TYPES.get(status, "invalid_request_error")
    return orjson.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}})


class RequestError(PlumageError):
    """One request is refused. Raised while it is read or routed; turned into a response by who owns the socket."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.retry_after = retry_after

    def body(self) -> bytes:
        return error_object(self.status, self.message, code=self.code, param=self.param)


def bad_request(message: str, *, code: str | None = None) -> RequestError:
    return RequestError(400, message, code=code)


def bad_field(param: str, message: str, *, code: str | None = None) -> RequestError:
    """The field `param` is wrong or may not be sent."""
    return RequestError(400, f"{param}: {message}", code=code, param=param)


def unauthorized(message: str) -> RequestError:
    return RequestError(401, message, code="invalid_api_key")


def unknown_model(name: str, served: str) -> RequestError:
    message = f"The model {name!r} does not exist here; this pool serves {served!r}."
    return RequestError(404, message, code="model_not_found", param="model")


def overloaded(message: str, retry_after: int = 1) -> RequestError:
    return RequestError(503, message, code="overloaded", retry_after=retry_after)


def no_replica(reason: str) -> RequestError:
    return RequestError(503, f"No replica can take the request: {reason}.", code="no_replica", retry_after=1)


def internal() -> RequestError:
    """A mistake of ours; the log says which."""
    return RequestError(500, "The router failed on this request.", code="internal")


def upstream_failed(reason: str, attempts: int) -> RequestError:
    tried = "1 replica" if attempts == 1 else f"{attempts} replicas"
    return RequestError(502, f"The request failed on {tried}: {reason}.", code="upstream_failed", retry_after=1)


def fell_silent(reason: str, replicas: int) -> RequestError:
    """No `retry_after`: the same request again may well do the same."""
    tried = "1 replica" if replicas == 1 else f"{replicas} replicas one after the other"
    message = f"The request waited on {tried} ({reason}) and is sent to no other, since it may be the cause."
    return RequestError(502, message, code="upstream_silent")


def engines_failed(reason: str, replicas: int) -> RequestError:
    """No `retry_after`, for the same reason."""
    tried = "1 replica" if replicas == 1 else f"{replicas} replicas"
    message = f"The request failed on {tried} ({reason}) and is sent to no other, since it may be the cause."
    return RequestError(502, message, code="engines_failed")


def quarantined(seconds: float) -> RequestError:
    """A 4xx, since clients send a request again by themselves after a 5xx."""
    wait = max(1, math.ceil(seconds))
    message = f"Engines failed on this very request. It is refused for {wait} s; change it, or wait."
    return RequestError(422, message, code="quarantined", retry_after=wait)
