"""What rendering needs of a model folder, read once: template, special tokens, tokenizer.json, context length.

Files and their precedence are those of `transformers`:

- chat_template.jinja and additional_chat_templates/*.jinja come before `chat_template` in tokenizer_config.json, which
  is a template or a list of named ones.
- Special tokens are read from tokenizer_config.json. In old folders special_tokens_map.json overrides it.
- The tokens around a raw prompt (BOS) are those of tokenizer.json's post-processor.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from xxhash import xxh3_64_hexdigest

from plumage.errors import ConfigurationError

__all__ = ["ModelFolder"]

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """templates: chat templates by name; the nameless one is "default". special_tokens: bos_token, eos_token, … as the
    template sees them. around: texts of the special tokens put before and after a raw prompt."""

    path: Path
    templates: Mapping[str, str]
    special_tokens: Mapping[str, str]
    tokenizer_json: bytes = field(repr=False)
    max_model_len: int | None = None
    around: tuple[str, str] = ("", "")

    @classmethod
    def load(cls, path: str | Path) -> ModelFolder:
        """ConfigurationError when the folder lacks tokenizer.json or a file is damaged. No template is no error: the
        model then serves raw completions only."""
        folder = Path(path)
        tokenizer_json = _bytes(folder / "tokenizer.json")
        if tokenizer_json is None:
            raise ConfigurationError(f"{folder} holds no tokenizer.json; copy the model's there")
        config = _object(folder / "tokenizer_config.json")
        return cls(
            path=folder,
            templates=_templates(folder, config),
            special_tokens=_special_tokens(_with_legacy_map(folder, config)),
            tokenizer_json=tokenizer_json,
            max_model_len=_context_length(_object(folder / "config.json")),
            around=_around(_parse(tokenizer_json, folder / "tokenizer.json")),
        )

    @property
    def chat_template(self) -> str | None:
        """The template of a request without tools."""
        return self.templates.get("default")

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits: equal where prompts become the same bytes, and these bytes the same tokens."""
        parts = [sorted(self.templates.items()), sorted(self.special_tokens.items()), self.around]
        return xxh3_64_hexdigest(json.dumps(parts).encode() + self.tokenizer_json)


def _bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error


def _object(path: Path) -> dict[str, Any]:
    data = _bytes(path)
    return {} if data is None else _parse(data, path)


def _parse(data: bytes, path: Path) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except ValueError as error:
        raise ConfigurationError(f"{path} is no JSON ({error}); fetch the file again") from error
    if not isinstance(value, dict):
        raise ConfigurationError(f"{path} must hold a JSON object, but holds a {type(value).__name__}")
    return value


def _templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    files = {"default": folder / "chat_template.jinja"}
    files |= {path.stem: path for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    found = {name: _text(data, path) for name, path in files.items() if (data := _bytes(path)) is not None}
    if found:
        return found
    given = config.get("chat_template")
    if isinstance(given, str):
        return {"default": given}
    try:
        return {str(entry["name"]): str(entry["template"]) for entry in given or ()}
    except (KeyError, TypeError) as error:
        where = folder / "tokenizer_config.json"
        raise ConfigurationError(
            f"{where}: chat_template must be a template, or a list of them with `name` and `template`"
        ) from error


def _text(data: bytes, path: Path) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path} is not UTF-8 text (at byte {error.start}); save it as UTF-8") from error


def _with_legacy_map(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    """Folders without `added_tokens_decoder` are old: there the map of special tokens has the last word."""
    return config if "added_tokens_decoder" in config else config | _object(folder / "special_tokens_map.json")


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """A token is written as its text, or as an object with its text in `content`."""
    tokens = {}
    for name in _NAMED_TOKENS:
        value = config.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            tokens[name] = text
    return tokens


def _context_length(config: Mapping[str, Any]) -> int | None:
    """Multimodal models keep it in their text part's configuration."""
    for part in (config, config.get("text_config")):
        value = part.get("max_position_embeddings") if isinstance(part, dict) else None
        if isinstance(value, int) and value > 0:
            return value
    return None


def _around(tokenizer: Mapping[str, Any]) -> tuple[str, str]:
    """The special tokens that the post-processor puts before and after one text."""
    try:
        return _read_around(tokenizer)
    except (AttributeError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"tokenizer.json: its post_processor can't be read ({error!r}); fetch the file again"
        ) from error


def _read_around(tokenizer: Mapping[str, Any]) -> tuple[str, str]:
    before: list[str] = []
    after: list[str] = []
    for step in _post_processors(tokenizer.get("post_processor")):
        side = before
        for item in step.get("single") or ():
            if "Sequence" in item:
                side = after
            elif "SpecialToken" in item:
                side.extend(step["special_tokens"][item["SpecialToken"]["id"]]["tokens"])
    return "".join(before), "".join(after)


def _post_processors(step: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    if not step:
        return []
    if step.get("type") == "Sequence":
        return [found for nested in step.get("processors") or () for found in _post_processors(nested)]
    return [step] if step.get("type") == "TemplateProcessing" else []
