"""What can go wrong between the operator and its cluster. Retryability is in the type."""

from __future__ import annotations

from plumage.errors import PlumageError

__all__ = ["ApiError", "ConflictError", "GoneError", "RefusedError", "UnavailableError", "is_namespace_ending"]


class ApiError(PlumageError):
    """The API server did not do what was asked. Base of what follows.

    status: HTTP's, 0 without an answer. reason: Kubernetes' own word, such as Invalid. after: seconds that the server
    asked to wait.
    """

    def __init__(self, message: str, status: int = 0, reason: str = "", after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.after = after


class UnavailableError(ApiError):
    """Away, slow, throttling, or failing inside: asked again later, it may work."""


class ConflictError(ApiError):
    """Somebody changed the object meanwhile: look again, then decide again."""


class GoneError(ApiError):
    """There is no such object (any more)."""


class RefusedError(ApiError):
    """It will say no again until somebody changes something: quota, policy, a namespace that ends, an invalid value."""


def is_namespace_ending(error: ApiError) -> bool:
    """Whether the API server refused to create an object because its namespace is being deleted."""
    return isinstance(error, RefusedError) and "being terminated" in str(error)
