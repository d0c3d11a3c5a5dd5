"""Errors of the API server. The type says whether a retry may help. Pure."""

from __future__ import annotations

from plumage.api_server import ApiServerError

__all__ = ["ApiError", "ConflictError", "GoneError", "RefusedError", "UnavailableError", "is_namespace_ending"]


class ApiError(ApiServerError):
    """The API server did not do what was asked. Base of the others. after: seconds that it asked to wait."""

    def __init__(self, message: str, status: int = 0, reason: str = "", after: float | None = None) -> None:
        super().__init__(message, status, reason)
        self.after = after


class UnavailableError(ApiError):
    """The API server is away, slow, throttling or failing inside. A later retry may work."""


class ConflictError(ApiError):
    """The object changed meanwhile: read it again, then decide again."""


class GoneError(ApiError):
    """The object does not exist, or no longer."""


class RefusedError(ApiError):
    """The API server will refuse again until somebody changes a quota, a policy, a namespace or a value."""


def is_namespace_ending(error: ApiError) -> bool:
    """Whether the API server refused to create an object because its namespace is being deleted."""
    return isinstance(error, RefusedError) and "being terminated" in str(error)
