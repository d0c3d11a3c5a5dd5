"""The manifests in the pages are valid: whole ones and fragments of a spec."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from docs_pages.references import ROOT, pages

from plumage.api.v1alpha1 import API_VERSION, parse_manifest
from plumage.errors import ManifestError

SMALLEST: dict[str, Any] = {
    "apiVersion": API_VERSION,
    "kind": "InferencePool",
    "metadata": {"name": "chat"},
    "spec": {"model": {"uri": "builtin://tiny-llama"}},
}
BLOCKS = [
    pytest.param(block, id=f"{page.relative_to(ROOT)}: {number}")
    for page in pages()
    for number, block in enumerate(re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL))
]


@pytest.mark.parametrize("block", BLOCKS)
def test_manifest_in_a_page_is_valid(block: str) -> None:
    document = yaml.safe_load(block)
    whole = document if "kind" in document else {**SMALLEST, "spec": {**SMALLEST["spec"], **document["spec"]}}
    assert parse_manifest(whole, "page").metadata.name


def test_wrong_fragment_is_found() -> None:
    with pytest.raises(ManifestError):
        test_manifest_in_a_page_is_valid("spec:\n  engine: {runtim: VLLM}\n")
    assert len(BLOCKS) > 5
