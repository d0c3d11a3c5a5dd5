"""Reads manifests from files and applies `--set`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from plumage.api.v1alpha1 import InferencePool, check_pool, read_documents
from plumage.errors import ManifestError
from plumage_cli.errors import CliError

__all__ = ["parse_pool", "read_pool", "read_text"]

_GATEWAY = (
    "local mode serves no InferenceGateway: it runs one InferencePool with its own router. Put the pool that you want "
    "to try into its own file, without spec.router.gatewayRef"
)


def read_text(path: Path) -> str:
    """A file's text, or standard input for `-`."""
    try:
        return (_piped() if str(path) == "-" else path.read_bytes()).decode()
    except OSError as error:
        raise CliError(f"can't read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise CliError(f"can't read {path}: it is not UTF-8 text") from None


def _piped() -> bytes:
    if sys.stdin is None:
        raise CliError("can't read -: standard input is closed")
    return sys.stdin.buffer.read()


def read_pool(path: Path, changes: Iterable[str] = ()) -> InferencePool:
    """The InferencePool in a file. changes: `spec.path.to=value`, applied before the check.

    ManifestError where the file has mistakes, no pool or several pools.
    """
    return parse_pool(read_text(path), str(path), changes)


def parse_pool(text: str, source: str, changes: Iterable[str] = ()) -> InferencePool:
    """The InferencePool in a text. source: its name in messages."""
    documents = read_documents(text, source)
    contents = [document.content for document in documents if document.content is not None]
    pools = [content for content in contents if content.get("kind") == "InferencePool"]
    for change in changes if len(pools) == 1 else ():
        _set(pools[0], change)
    try:
        return check_pool(documents, source)
    except ManifestError as error:
        gateway = any(content.get("kind") == "InferenceGateway" for content in contents)
        raise ManifestError(source, [*error.mistakes, *([_GATEWAY] if gateway and len(pools) != 1 else [])]) from None


def _set(document: dict[str, Any], change: str) -> None:
    path, separator, text = change.partition("=")
    keys = path.split(".")
    if not separator or not all(keys):
        raise CliError(f"--set takes PATH=VALUE, for example spec.replicas=2; got {change!r}")
    if keys[0] not in ("spec", "metadata"):
        keys.insert(0, "spec")
    for key in keys[:-1]:
        document = document.setdefault(key, {})
        if not isinstance(document, dict):
            raise CliError(f"--set {change}: {key} is not a mapping in the manifest")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise CliError(f"--set {change}: the value must be YAML, for example 2, Lbgr or [a, b]") from None
    if value is None:
        document.pop(keys[-1], None)
    else:
        document[keys[-1]] = value
