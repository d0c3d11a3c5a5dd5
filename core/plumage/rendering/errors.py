"""Errors of rendering a prompt.

RenderingError
├── RequestShapeError    a field has not the form of its API; answer 400 with the field
├── TemplateError        the client's messages do not fit the model's template; answer 400 with the message
└── RenderLimitError     the prompt is too large to render here; route it without cache knowledge
"""

from __future__ import annotations

from plumage.errors import PlumageError

__all__ = ["RenderLimitError", "RenderingError", "RequestShapeError", "TemplateError"]


class RenderingError(PlumageError):
    """Base of all errors of rendering."""


class RequestShapeError(RenderingError):
    """A field of the request has the wrong type. The message is meant for the client, and begins with a verb.

    field: its path in the body."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


class TemplateError(RenderingError):
    """The request can't be rendered; the engine would refuse it too. The message is meant for the client.

    field: the wrong field of the request, with which the message begins; None if the template refuses the messages."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field


class RenderLimitError(RenderingError):
    """Rendering would cost more than the router may spend. The engine may still accept the request."""
