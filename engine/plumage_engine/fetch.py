"""`python -m plumage_engine.fetch --uri hf://ORGANISATION/MODEL --to FOLDER`: what agent and router read of a model.

Tokenizer, configuration and chat template, without weights: an init container of their pods fetches them. The token of
a gated model is HF_TOKEN, another address HF_ENDPOINT, as everywhere with Hugging Face. Exit codes: 1 where it can't be
fetched (its last line says why, and the kubelet shows that), 2 for wrong arguments.
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
    """The folder, filled. OSError and ValueError say what the hub said."""
    from huggingface_hub import snapshot_download  # imported here: half a second that --help need not take

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


def _failed(words: str, termination: Path) -> int:
    """Told in the log, and to the kubelet, so that the pool's condition can repeat it."""
    sys.stderr.write(f"{words}\n")
    with suppress(OSError):
        termination.write_text(words[:2000])
    return 1


if __name__ == "__main__":
    sys.exit(main())
