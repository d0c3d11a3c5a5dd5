"""Images: each is a root folder and a JSON file, which ../images.py makes. Nothing is pulled."""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Image", "ImageStore", "normalized"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Image:
    """One image, as its JSON file describes it. `id` is that file's digest."""

    id: str
    name: str
    rootfs: str
    entrypoint: list[str] = field(default_factory=list)
    cmd: list[str] = field(default_factory=list)
    env: list[str] = field(default_factory=list)
    workdir: str = ""
    user: str = ""

    @classmethod
    def read(cls, path: Path) -> Image:
        raw = path.read_bytes()
        described = {key: value for key, value in json.loads(raw).items() if value is not None}
        return cls(id="sha256:" + hashlib.sha256(raw).hexdigest(), **described)

    def user_ids(self) -> tuple[int, int]:
        """User and group by the image's `USER`: numbers, or a name of its /etc/passwd. Raises LookupError."""
        name, _, group = (self.user or "0").partition(":")
        uid, gid = (int(name), 0) if name.isdigit() else self.named_user(name)
        return uid, int(group) if group.isdigit() else gid

    def named_user(self, name: str) -> tuple[int, int]:
        """A name's user and group. Raises LookupError."""
        for row in Path(self.rootfs, "etc/passwd").read_text().splitlines():
            fields = row.split(":")
            if fields[0] == name:
                return int(fields[2]), int(fields[3])
        raise LookupError(f"{self.name} has no user {name}")


class ImageStore:
    """The images that are in a folder at this moment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def all(self) -> list[Image]:
        found = []
        for path in sorted(self.folder.glob("*.json")):
            try:
                found.append(Image.read(path))
            except (OSError, ValueError, TypeError) as error:
                _log.warning("image file %s: %s", path, error)
        return found

    def find(self, reference: str) -> Image | None:
        """Finds an image by id, or by name with or without a tag or digest. Of several the last built one is
        returned."""
        wanted = normalized(reference)
        images = self.all()
        by_id = (image for image in images if image.id == reference or reference.endswith(f"@{image.id}"))
        by_name = (image for image in images if normalized(image.name) == wanted)
        return next(by_id, None) or next(by_name, None)


def normalized(reference: str) -> str:
    """The name with its tag: `latest` where it has none."""
    return reference if ":" in reference.rsplit("/", 1)[-1] else f"{reference}:latest"
