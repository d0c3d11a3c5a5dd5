"""Why a route refuses a call, in the API server or in the engine core."""

from __future__ import annotations

from plumage.errors import PlumageError

__all__ = ["RefusedError"]


class RefusedError(PlumageError):
    """status: HTTP's."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
