"""Gets the files of a LoRA adapter: downloads its repository from the hub, in threads that may hang.

First comes its configuration: a repository without one has no adapter, however large it is. Then come the files that
vLLM reads, and no others.
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from plumage_engine.adapters import AdapterError

__all__ = ["CONFIG", "FetchThreads", "download"]

CONFIG: Final = "adapter_config.json"
_FILES: Final = (
    CONFIG,
    "adapter_model.safetensors",
    "adapter_model.bin",
    "adapter_model.pt",
    "new_embeddings.*",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
)
_URL: Final = re.compile(r"https?://[^\s'\"]+")
_LOGS_OF_URLS: Final = ("huggingface_hub.utils._http", "huggingface_hub.file_download")
_ANSWER_SECONDS: Final = 30.0  # for an answer of the hub
_MOST_THREADS: Final = 16  # more than run at a time: a thread that hangs cannot be ended


def _without_urls(record: logging.LogRecord) -> bool:
    record.msg, record.args = _URL.sub("[URL]", record.getMessage()), ()
    return True


def download(repository: str) -> str:
    """Downloads an adapter and returns its folder in the hub's cache. The hub's own messages may have URLs with
    credentials, so they are left out."""
    from huggingface_hub import hf_hub_download, snapshot_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    for name in _LOGS_OF_URLS:
        logging.getLogger(name).addFilter(_without_urls)  # once, however often
    try:
        config = hf_hub_download(repository, CONFIG, etag_timeout=_ANSWER_SECONDS)
        commit = Path(config).parent.name  # of both, if the repository changes meanwhile
        return str(
            snapshot_download(
                repository, revision=commit, allow_patterns=list(_FILES), etag_timeout=_ANSWER_SECONDS, max_workers=2
            )
        )
    except Exception as error:
        status = _status(error)
        if isinstance(error, EntryNotFoundError) and not isinstance(error, LocalEntryNotFoundError):
            raise AdapterError(f"there is no {CONFIG} in {repository}") from None
        kind = type(error).__name__ + ("" if status is None else f", HTTP {status}")
        raise AdapterError(f"{repository} cannot be downloaded: {kind}") from None


def _status(error: BaseException | None) -> int | None:
    """Returns the status of the hub's answer, if there was one; the client raises one error from another."""
    while error is not None:
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status is not None:
            return int(status)
        error = error.__cause__
    return None


class FetchThreads:
    """Runs `work` in threads, which do not keep the process from ending: a download may hang.

    A source has one thread at a time. Who asks again for a source that was given up joins its thread.
    """

    def __init__(self, work: Callable[[str], str]) -> None:
        self._work = work
        self._running: dict[str, asyncio.Future[str]] = {}

    async def result(self, source: str) -> str:
        """AdapterError where `work` raises it, or too many threads hang."""
        found = self._running.get(source)
        if found is None:
            if len(self._running) >= _MOST_THREADS:
                raise AdapterError(f"{_MOST_THREADS} downloads hang: check the hub or the volume, restart the engine")
            loop = asyncio.get_running_loop()
            found = self._running[source] = loop.create_future()
            threading.Thread(target=self._run, args=(source, found, loop), name="adapter fetch", daemon=True).start()
        return await asyncio.shield(found)

    def _run(self, source: str, done: asyncio.Future[str], loop: asyncio.AbstractEventLoop) -> None:
        result, failed = "", None
        try:
            result = self._work(source)
        except AdapterError as error:
            failed = error
        except Exception as error:
            failed = AdapterError(f"{source} cannot be read: {type(error).__name__}")
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._finish, source, done, result, failed)

    def _finish(self, source: str, done: asyncio.Future[str], result: str, failed: AdapterError | None) -> None:
        del self._running[source]
        if failed is None:
            done.set_result(result)
        else:
            done.set_exception(failed)
            done.exception()  # nobody may wait for it any more
