"""Images of the test cluster."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["renamed"]


@contextmanager
def renamed(name: str, images: Path) -> Iterator[str]:
    """A further tag of one of `images` for the time of the context. The kubelet sees the same files under another name
    and id, as for a release that changed little. Nothing is copied."""
    image = next(one for path in images.glob("*.json") if (one := json.loads(path.read_text()))["name"] == name)
    tag = f"another-{uuid.uuid4().hex[:8]}"
    file = images / f"{tag}.json"
    file.with_suffix(".new").write_text(json.dumps({**image, "name": f"{name.rpartition(':')[0]}:{tag}"}))
    file.with_suffix(".new").rename(file)
    try:
        yield tag
    finally:
        file.unlink()
