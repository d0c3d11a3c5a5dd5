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
    """The request can't be rendered; the engine would refuse it too. The message is meant for the client."""


class RenderLimitError(RenderingError):
    """Rendering would cost more than the router may spend. The engine may still accept the request."""
