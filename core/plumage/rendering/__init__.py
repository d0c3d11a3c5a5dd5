"""From an OpenAI request to the bytes of the engine's prompt, without tokenizing.

`ModelFolder.load` reads a model's folder, `ChatRenderer` renders its prompts, `ByteTable` turns token ids into the same
bytes. The chain of chunks (`plumage.hashing.chunks`) over these bytes is the directory's key.
"""

from __future__ import annotations

from plumage.rendering.bytetable import ByteTable
from plumage.rendering.chat import ChatRenderer, Limits
from plumage.rendering.conversation import MultimodalCut
from plumage.rendering.errors import RenderingError, RenderLimitError, TemplateError
from plumage.rendering.folder import ModelFolder
from plumage.rendering.normalizer import Normalizer

__all__ = [
    "ByteTable",
    "ChatRenderer",
    "Limits",
    "ModelFolder",
    "MultimodalCut",
    "Normalizer",
    "RenderLimitError",
    "RenderingError",
    "TemplateError",
]
