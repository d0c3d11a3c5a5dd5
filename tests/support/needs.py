"""Requirements of tests that a machine may lack: without one the test is skipped with the reason; with `CI` it fails.

A test that needs a directory server has the mark `redis`, which tests/conftest.py checks. For all else call a function
below.
"""

from __future__ import annotations

import importlib
import os
import resource
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import pytest

from plumage.directory.server.local_server import find_server
from plumage.errors import ConfigurationError

__all__ = ["directory_server", "missing", "module", "open_files"]


def missing(what: str, remedy: str) -> NoReturn:
    """Skips or fails this test, with what is missing and the remedy."""
    reason = f"needs {what}: {remedy}"
    if os.environ.get("CI"):
        pytest.fail(f"{reason} (with CI set, a missing part is a failure)", pytrace=False)
    pytest.skip(reason)


def module(name: str) -> ModuleType:
    """An optional package."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        missing(f"the package {name.partition('.')[0]}", "pip install 'plumage-llm[dev]'")


def directory_server() -> Path:
    """The path of a redis-server or valkey-server."""
    found = _server()
    if isinstance(found, str):
        missing("a directory server", found)
    return found


@cache
def _server() -> Path | str:
    """Searched once, since the search starts programs."""
    try:
        return find_server()
    except ConfigurationError as error:
        return str(error)


def open_files(wanted: int) -> None:
    """Lets this process open this many files at once. The caller restores the soft limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        missing(f"{wanted:,} open files, this machine allows {hard:,}", "raise the hard limit (ulimit -Hn)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
