"""Model folders that ship with Plumage, and how a manifest's `model.uri` becomes a folder on this machine.

A model folder is what Hugging Face publishes less the weights: tokenizer.json, tokenizer_config.json, config.json and a
chat template. `builtin://tiny-chat` is one, so that a pool runs without a download. `builtin://tiny-llama` has a token
a byte. `plumage up` makes random weights for it, so that real vLLM can serve it.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from plumage.errors import ConfigurationError

__all__ = ["BUILTIN", "WITH_WEIGHTS", "is_known", "resolve"]

BUILTIN = {name: Path(__file__).parent / name.replace("-", "_") for name in ("tiny-chat", "tiny-llama")}
WITH_WEIGHTS = "builtin://tiny-llama"
"""The built-in model that vLLM can serve."""


def is_known(uri: str) -> bool:
    """Whether `uri` is no `builtin://NAME`, or one of a model there is."""
    parts = urlsplit(uri)
    return parts.scheme != "builtin" or (_name(parts) in BUILTIN and not parts.query and not parts.fragment)


def resolve(uri: str) -> Path:
    """The folder that `uri` names: `builtin://NAME`, `file:///absolute/path`, or a plain path.

    Raises ConfigurationError for an unknown name, a missing folder, one without tokenizer.json, and a scheme that
    Plumage does not download from.
    """
    parts = urlsplit(uri)
    if parts.scheme == "builtin":
        return _builtin(_name(parts))
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return _folder(Path(unquote(parts.path)), uri)
    if "://" in uri:
        raise ConfigurationError(
            f"model uri {uri!r}: cannot read {parts.scheme}:// here; give builtin://NAME, file:///PATH or a folder "
            "that holds the model's tokenizer.json"
        )
    return _folder(Path(uri).expanduser(), uri)


def _name(parts: SplitResult) -> str:
    return (parts.netloc + parts.path).rstrip("/")


def _builtin(name: str) -> Path:
    try:
        return BUILTIN[name]
    except KeyError:
        known = ", ".join(f"builtin://{known}" for known in BUILTIN)
        raise ConfigurationError(f"no built-in model {name!r}; there are: {known}") from None


def _folder(path: Path, uri: str) -> Path:
    if not path.is_dir():
        raise ConfigurationError(f"model uri {uri!r}: no such folder; create it or correct the path")
    if not (path / "tokenizer.json").is_file():
        raise ConfigurationError(f"model uri {uri!r}: the folder holds no tokenizer.json; copy the model's there")
    return path.resolve()
