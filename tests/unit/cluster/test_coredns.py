"""CoreDNS's image in the folder that clusters share."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cluster.coredns import IMAGE, make_image


def test_concurrent_clusters_build_the_image_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLUMAGE_CACHE", str(tmp_path / "cache"))
    program, images = tmp_path / "coredns", tmp_path / "images"
    program.write_bytes(b"static")
    with ThreadPoolExecutor(8) as clusters:
        for made in [clusters.submit(make_image, program, images) for _ in range(200)]:
            made.result(timeout=60)
    manifest = json.loads((images / "coredns.json").read_text())
    assert manifest["name"] == IMAGE
    assert Path(manifest["rootfs"], "coredns").read_bytes() == b"static"
