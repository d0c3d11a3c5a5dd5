"""Hostile YAML, sent to a real API server as `application/yaml`, by kubectl, and to `plumage validate`."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent

import pytest
from support.crds import Kinds
from typer.testing import CliRunner

from plumage.api.v1alpha1 import API_VERSION, load_pool, parse_pool
from plumage.errors import ManifestError
from plumage_cli.main import app

HEAD = f"apiVersion: {API_VERSION}\nkind: InferencePool\nmetadata: {{name: tricks}}\nspec:\n"
MODEL = "  model: {uri: 'hf://a/b'}\n"
LAUGHS = "".join(
    f"  a{number}: &a{number} [{', '.join([f'*a{number - 1}' if number else 'x'] * 9)}]\n" for number in range(10)
)

REFUSED = {
    "billion laughs": LAUGHS + MODEL,
    "billion laughs in Kubernetes' own fields": "  engine:\n    affinity:\n" + indent(LAUGHS, "    ") + MODEL,
    "a key twice": MODEL + "  replicas: 1\n  replicas: 2\n",
    "a key twice, deep": "  model: {uri: 'hf://a/b', uri: 'hf://a/c'}\n",
    "a key merged in and set again": MODEL + "  engine: {env: [&e {name: A, value: x}, {<<: *e, name: B}]}\n",
    "a key set and merged in again": MODEL + "  engine: {env: [&e {name: A, value: x}, {name: B, <<: *e}]}\n",
    "itself": MODEL + "  engine: {affinity: &a {x: *a}}\n",
    "a deep nest": MODEL + "  engine: {affinity: " + "{a: " * 11_000 + "1" + "}" * 11_000 + "}\n",
    "another language's object": MODEL + "  engine: {args: [!!python/object/apply:os.system ['true']]}\n",
    "a long argument": MODEL + f"  engine: {{args: ['{'x' * 200_000}']}}\n",
}


@pytest.mark.parametrize("name", REFUSED)
def test_hostile_yaml_is_refused_by_both(kinds: Kinds, name: str) -> None:
    text = HEAD + REFUSED[name]
    with pytest.raises(ManifestError) as caught:
        load_pool(text, "tricks")
    assert len(str(caught.value)) < 1_000, "the error is short"
    verdict = kinds.create_yaml(text)
    assert verdict.code in (400, 422), verdict.body
    assert kinds.get("InferencePool", "tricks").code == 404


@pytest.mark.parametrize(
    "spec",
    [
        "  model: {uri: &u 'hf://a/b', tokenizer: *u}\n",
        MODEL + "  engine: {resources: {requests: &r {memory: 1Gi}, limits: {<<: *r, cpu: 1}}}\n",
        MODEL + "  engine: {env: [{name: A, value: 'no'}, {name: B, value: \"0o17\"}]}\n",
        MODEL + '  engine: {args: [!!str 3, "\\x2d\\x2da"]}\n',
    ],
)
def test_unusual_yaml_means_the_same_to_all(kinds: Kinds, spec: str) -> None:
    text, ours = HEAD + spec, load_pool(HEAD + spec, "tricks")
    by_server = kinds.create_yaml(text, dry_run=True)
    assert by_server.accepted, by_server.body
    assert parse_pool(by_server.body, "kept").spec == ours.spec


def test_validate_prints_the_path_and_not_the_long_value(tmp_path: Path) -> None:
    file = tmp_path / "pool.yaml"
    file.write_text(HEAD + REFUSED["a long argument"])
    result = CliRunner().invoke(app, ["validate", str(file)])
    assert result.exit_code != 0
    assert "spec.engine.args[0]: must have at most" in result.output
    assert len(result.output) < 1_000
