"""Loads LoRA adapters into vLLM's API server, in place of its own unprotected routes for that.

vLLM's worker would download a repository itself, and answer no request meanwhile. So a repository is downloaded here
first, by a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from plumage_engine.adapter_files import CONFIG, FetchThreads, download
from plumage_engine.adapters import AdapterError, AdapterServer

__all__ = ["VllmAdapters"]

_MOST_LEFT: Final = 256  # ids of unloaded adapters


class VllmAdapters(AdapterServer):
    """models: vLLM's OpenAIServingModels. compat: the module that knows its methods. get: downloads a repository to its
    folder."""

    def __init__(self, models: Any, compat: Any, get: Callable[[str], str] = download) -> None:
        self._models = models
        self._compat = compat
        self._download = get
        self._threads = FetchThreads(self._folder)
        self._sources: dict[str, tuple[str, str]] = {}  # by name: source and folder
        self._left: dict[str, Any] = {}  # vLLM's requests of adapters that were unloaded, by name, the last at the end

    def sources(self) -> Mapping[str, str]:
        """An adapter that vLLM got by its flags has its path as source."""
        paths = {name: str(request.lora_path) for name, request in self._models.lora_requests.items()}
        return {name: self._source(name, path) for name, path in paths.items()}

    def _source(self, name: str, path: str) -> str:
        source, folder = self._sources.get(name, ("", ""))
        return source if folder == path else path

    async def fetch(self, source: str) -> str:
        return await self._threads.result(source)

    def _folder(self, source: str) -> str:
        if "://" in source:
            raise AdapterError("vLLM loads adapters from folders and repositories of the hub only")
        folder = source if source.startswith("/") else self._download(source)
        if not Path(folder, CONFIG).is_file():
            raise AdapterError(f"there is no {CONFIG} in {source}")
        return folder

    async def load(self, name: str, source: str, folder: str) -> None:
        """Loads an adapter. One that was unloaded before gets its former id again.

        vLLM takes two adapters of one name for the same. With another id it could give away the slot of requests that
        are still in flight.
        """
        before = self._models.lora_requests.get(name) or self._left.get(name)
        if message := await self._compat.load(self._models, name, folder, before=before):
            raise AdapterError(message)
        self._left.pop(name, None)
        self._sources[name] = source, folder

    async def unload(self, name: str) -> None:
        self._left[name] = self._compat.unload(self._models, name)
        while len(self._left) > _MOST_LEFT:
            del self._left[next(iter(self._left))]
        self._sources.pop(name, None)
