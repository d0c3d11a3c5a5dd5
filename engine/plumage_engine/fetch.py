"""`python -m plumage_engine.fetch --uri hf://ORGANISATION/MODEL --to FOLDER`: fetches a model's tokenizer.

It fetches tokenizer, configuration and chat template, without weights, in an init container of agents' and routers'
pods. HF_TOKEN is the token for a gated model, HF_ENDPOINT another address, as everywhere with Hugging Face. Exit codes:
1 for a failed download (the last line has the reason, and the kubelet shows it), 2 for wrong arguments.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from pathlib import Path

__all__ = ["FILES", "fetch", "main"]

FILES = ("*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken")
_WEIGHTS = ("*.safetensors.index.json", "*.bin.index.json", "consolidated*")
_SCHEME = "hf://"
_SECONDS = 30.0  # for an answer of the hub
_TERMINATION = Path("/dev/termination-log")


def fetch(uri: str, folder: Path, revision: str | None) -> Path:
    """The folder with its files. OSError and ValueError have the hub's message."""
    from huggingface_hub import snapshot_download  # imported here, because it takes half a second

    found = snapshot_download(
        uri.removeprefix(_SCHEME).rstrip("/"),
        revision=revision,
        local_dir=folder,
        allow_patterns=list(FILES),
        ignore_patterns=list(_WEIGHTS),
        etag_timeout=_SECONDS,
    )
    if not (folder / "tokenizer.json").is_file():
        raise OSError(f"{uri} has no tokenizer.json: name a repository that has one in spec.model.tokenizer")
    return Path(found)


def main(arguments: list[str] | None = None, termination: Path = _TERMINATION) -> int:
    parser = argparse.ArgumentParser(prog="python -m plumage_engine.fetch", description="Fetch a model's tokenizer.")
    parser.add_argument("--uri", required=True, help="hf://ORGANISATION/MODEL")
    parser.add_argument("--to", type=Path, required=True, help="the folder to fill")
    parser.add_argument("--revision", help="branch, tag or commit")
    options = parser.parse_args(arguments)
    if not options.uri.startswith(_SCHEME):
        parser.error(f"--uri must be {_SCHEME}ORGANISATION/MODEL, got {options.uri!r}")
    try:
        fetch(options.uri, options.to, options.revision)
    except (OSError, ValueError) as error:
        return _failed(f"can't fetch {options.uri}: {type(error).__name__}: {error}", termination)
    return 0


def _failed(message: str, termination: Path) -> int:
    """Write the error to the log, and to the kubelet, so that the pool's condition can contain it."""
    sys.stderr.write(f"{message}\n")
    with suppress(OSError):
        termination.write_text(message[:2000])
    return 1


if __name__ == "__main__":
    sys.exit(main())
