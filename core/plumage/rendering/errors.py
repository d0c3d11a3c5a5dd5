"""Errors of rendering a prompt.

RenderingError
├── TemplateError        the client's messages do not fit the model's template; answer 400 with the message
└── RenderLimitError     the prompt is too large to render here; route it without cache knowledge
"""

from __future__ import annotations

from plumage.errors import PlumageError

__all__ = ["RenderLimitError", "RenderingError", "TemplateError"]


class RenderingError(PlumageError):
    """Base of all errors of rendering."""


class TemplateError(RenderingError):
    """The request can't be rendered; the engine would refuse it too. The message is meant for the client.

    field: the wrong field of the request, with which the message begins; None if the template refuses the messages."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field


class RenderLimitError(RenderingError):
    """Rendering would cost more than the router may spend. The engine may still accept the request."""
