"""Loads LoRA adapters into vLLM's API server, in place of its own unprotected routes for that.

vLLM's worker would download a repository itself, and answer no request meanwhile. So a repository is downloaded here
first, by a thread.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

from plumage_engine.adapters import AdapterError, AdapterServer

__all__ = ["VllmAdapters"]


class VllmAdapters(AdapterServer):
    """models: vLLM's OpenAIServingModels. compat: the module that knows its methods. download: a repository to its
    folder."""

    def __init__(self, models: Any, compat: Any, download: Callable[[str], str] | None = None) -> None:
        self._models = models
        self._compat = compat
        self._download = download or _download
        self._sources: dict[str, tuple[str, str]] = {}  # by name: source and folder
        self._left: dict[str, Any] = {}  # vLLM's requests of adapters that were unloaded, by name

    def sources(self) -> Mapping[str, str]:
        """An adapter that vLLM got by its flags has its path as source."""
        paths = {name: str(request.lora_path) for name, request in self._models.lora_requests.items()}
        return {name: self._source(name, path) for name, path in paths.items()}

    def _source(self, name: str, path: str) -> str:
        source, folder = self._sources.get(name, ("", ""))
        return source if folder == path else path

    async def fetch(self, source: str) -> str:
        return await _in_thread(lambda: self._folder(source))

    def _folder(self, source: str) -> str:
        if "://" in source:
            raise AdapterError("vLLM loads adapters from folders and repositories of the hub only")
        folder = source if os.path.isabs(source) else self._download(source)
        if not os.path.isfile(os.path.join(folder, "adapter_config.json")):
            raise AdapterError(f"there is no adapter_config.json in {source}")
        return folder

    async def load(self, name: str, source: str, folder: str) -> None:
        """An adapter that comes back has the id that it had. vLLM takes two of one name for the same, so with another
        id it could give the slot of requests that are still in flight away."""
        known = self._models.lora_requests
        left = None if name in known else self._left.pop(name, None)
        if left is not None:
            known[name] = left
        if message := await self._compat.load(self._models, name, folder, replace=name in known):
            if left is not None:
                self._left[name] = known.pop(name)
            raise AdapterError(message)
        self._sources[name] = source, folder

    async def unload(self, name: str) -> None:
        self._left[name] = self._models.lora_requests[name]
        await self._compat.unload(self._models, name)
        self._sources.pop(name, None)


def _download(repository: str) -> str:
    from huggingface_hub import snapshot_download

    try:
        return str(snapshot_download(repository))
    except Exception as error:
        raise AdapterError(f"{repository} cannot be downloaded: {type(error).__name__}: {error}") from error


async def _in_thread(work: Callable[[], str]) -> str:
    """In a thread of its own, which does not keep the process from ending: a download may hang."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[str] = loop.create_future()

    def finish(result: str | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result or "")

    def run() -> None:
        result: str | None = None
        failed: BaseException | None = None
        try:
            result = work()
        except Exception as error:
            failed = error
        if not loop.is_closed():
            loop.call_soon_threadsafe(finish, result, failed)

    threading.Thread(target=run, name="adapter download", daemon=True).start()
    return await done
