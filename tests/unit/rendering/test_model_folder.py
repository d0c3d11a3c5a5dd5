"""Model folders as Hugging Face publishes them, old and new."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plumage.errors import ConfigurationError
from plumage.models import resolve
from plumage.rendering import ModelFolder


def folder(path: Path, **files: Any) -> Path:
    """Files by their name with `_` for `.`. What is no text is written as JSON."""
    files = {"tokenizer.json": {"model": {"vocab": {}}}} | files
    for name, content in files.items():
        target = path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_built_in_model_is_loaded() -> None:
    model = ModelFolder.load(resolve("builtin://tiny-chat"))
    assert model.special_tokens == {"bos_token": "<|bos|>", "eos_token": "<|im_end|>"}
    assert model.around == ("<|bos|>", "")
    assert model.max_model_len == 32768
    assert model.chat_template is not None


def test_template_file_wins_over_the_configuration(tmp_path: Path) -> None:
    files = {"tokenizer_config.json": {"chat_template": "old"}, "chat_template.jinja": "new"}
    assert ModelFolder.load(folder(tmp_path, **files)).chat_template == "new"


def test_named_templates_are_read(tmp_path: Path) -> None:
    listed = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    model = ModelFolder.load(folder(tmp_path, **{"tokenizer_config.json": {"chat_template": listed}}))
    assert model.templates == {"default": "a", "tool_use": "b"}
    files = {"chat_template.jinja": "c", "additional_chat_templates/tool_use.jinja": "d"}
    assert ModelFolder.load(folder(tmp_path, **files)).templates == {"default": "c", "tool_use": "d"}


def test_special_tokens_are_texts_or_objects(tmp_path: Path) -> None:
    config = {"bos_token": {"content": "<s>", "lstrip": False}, "eos_token": "</s>", "pad_token": None}
    model = ModelFolder.load(folder(tmp_path, **{"tokenizer_config.json": config}))
    assert model.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}


@pytest.mark.parametrize(("decoder", "expected"), [({}, "map"), ({"added_tokens_decoder": {}}, "config")])
def test_old_folders_keep_special_tokens_in_a_map(tmp_path: Path, decoder: dict[str, Any], expected: str) -> None:
    config = {"eos_token": "config", **decoder}
    files = {"tokenizer_config.json": config, "special_tokens_map.json": {"eos_token": "map"}}
    assert ModelFolder.load(folder(tmp_path, **files)).special_tokens == {"eos_token": expected}


def test_tokens_around_a_raw_prompt(tmp_path: Path) -> None:
    template = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "B", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": "E", "type_id": 0}},
        ],
        "special_tokens": {
            "B": {"id": "B", "ids": [1], "tokens": ["<s>"]},
            "E": {"id": "E", "ids": [2], "tokens": ["!"]},
        },
    }
    sequence = {"type": "Sequence", "processors": [{"type": "ByteLevel"}, template]}
    tokenizer = {"model": {"vocab": {}}, "post_processor": sequence}
    assert ModelFolder.load(folder(tmp_path, **{"tokenizer.json": tokenizer})).around == ("<s>", "!")


def test_context_length_of_a_multimodal_model(tmp_path: Path) -> None:
    files = {"config.json": {"text_config": {"max_position_embeddings": 4096}}}
    assert ModelFolder.load(folder(tmp_path, **files)).max_model_len == 4096


def test_missing_template_is_no_error(tmp_path: Path) -> None:
    assert ModelFolder.load(folder(tmp_path)).chat_template is None


def test_unloadable_folder_is_refused_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"tokenizer\.json"):
        ModelFolder.load(tmp_path)
    with pytest.raises(ConfigurationError, match=r"config\.json is no JSON"):
        ModelFolder.load(folder(tmp_path, **{"config.json": "{"}))
    with pytest.raises(ConfigurationError, match="must hold a JSON object"):
        ModelFolder.load(folder(tmp_path, **{"config.json": "[]"}))


def test_template_that_is_no_utf8_is_refused(tmp_path: Path) -> None:
    folder(tmp_path)
    (tmp_path / "chat_template.jinja").write_bytes("Grüße".encode("latin-1"))
    with pytest.raises(
        ConfigurationError, match=r"chat_template\.jinja is not UTF-8 text \(at byte 2\); save it as UTF"
    ):
        ModelFolder.load(tmp_path)


@pytest.mark.parametrize("given", [[{"nme": "default"}], ["a"], 5, [{"name": "default"}]])
def test_template_in_an_unknown_form_is_refused(tmp_path: Path, given: Any) -> None:
    with pytest.raises(ConfigurationError, match="chat_template must be a template, or a list of them"):
        ModelFolder.load(folder(tmp_path, **{"tokenizer_config.json": {"chat_template": given}}))


@pytest.mark.parametrize(
    "step",
    [
        5,
        {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "B"}}]},
        {"type": "TemplateProcessing", "single": [5]},
        {"type": "Sequence", "processors": ["a"]},
    ],
)
def test_post_processor_in_an_unknown_form_is_refused(tmp_path: Path, step: Any) -> None:
    with pytest.raises(ConfigurationError, match="its post_processor can't be read"):
        ModelFolder.load(folder(tmp_path, **{"tokenizer.json": {"post_processor": step}}))


@pytest.mark.parametrize("length", [0, -5, "long", None])
def test_invalid_context_length_is_unknown(tmp_path: Path, length: Any) -> None:
    files = {"config.json": {"max_position_embeddings": length}}
    assert ModelFolder.load(folder(tmp_path, **files)).max_model_len is None


class TestResolve:
    def test_names_paths_and_files(self, tmp_path: Path) -> None:
        model = folder(tmp_path / "a model")
        assert resolve(str(model)) == model
        assert resolve(f"file://{str(model).replace(' ', '%20')}") == model
        assert (resolve("builtin://tiny-chat") / "tokenizer.json").is_file()

    @pytest.mark.parametrize(
        ("uri", "message"),
        [
            ("builtin://huge-chat", "builtin://tiny-chat"),
            ("hf://org/model", "cannot read hf://"),
            ("file:///no/such/folder", "no such folder"),
            ("/no/such/folder", "no such folder"),
        ],
    )
    def test_unknown_model_is_reported(self, uri: str, message: str) -> None:
        with pytest.raises(ConfigurationError, match=message):
            resolve(uri)

    def test_folder_without_a_model_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigurationError, match=r"holds no tokenizer\.json"):
            resolve(str(tmp_path))


@pytest.mark.parametrize(
    "changes",
    [
        {"chat_template.jinja": "{{ messages }}!"},
        {"tokenizer_config.json": {"bos_token": "<s>"}},
        {"tokenizer.json": {"model": {"vocab": {"a": 0}}}},
        {"additional_chat_templates/tool_use.jinja": "tools"},
    ],
    ids=["template", "token", "vocabulary", "named template"],
)
def test_fingerprint_differs_between_folders_that_render_or_tokenize_differently(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    files = {"chat_template.jinja": "{{ messages }}", "tokenizer_config.json": {"bos_token": "<bos>"}}
    one, same, other = (ModelFolder.load(folder(tmp_path / str(n), **files)) for n in range(3))
    assert one.fingerprint == same.fingerprint
    assert len(one.fingerprint) == 16
    other = ModelFolder.load(folder(tmp_path / "2", **{**files, "config.json": {"max_position_embeddings": 9}}))
    assert one.fingerprint == other.fingerprint, "the context's length changes no prompt"
    assert one.fingerprint != ModelFolder.load(folder(tmp_path / "3", **{**files, **changes})).fingerprint
