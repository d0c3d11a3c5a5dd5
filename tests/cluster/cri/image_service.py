"""The ImageService of the interface. It serves the images of the store, and answers NotFound for others, as a registry
does."""

from __future__ import annotations

import time
from typing import Any

import grpc

from cluster.cri.images import Image, ImageStore

__all__ = ["ImageService"]


class ImageService:
    """`pb` is the module of the interface's messages."""

    def __init__(self, pb: Any, store: ImageStore) -> None:
        self._pb, self._store = pb, store

    def ListImages(self, _request: Any, _context: Any) -> Any:
        return self._pb.ListImagesResponse(images=[self._message(image) for image in self._store.all()])

    def ImageStatus(self, request: Any, _context: Any) -> Any:
        image = self._store.find(request.image.image)
        return self._pb.ImageStatusResponse(image=self._message(image) if image else None)

    def PullImage(self, request: Any, context: Any) -> Any:
        image = self._store.find(request.image.image)
        if image is None:
            context.abort(grpc.StatusCode.NOT_FOUND, f"{request.image.image}: no such image in {self._store.folder}")
        return self._pb.PullImageResponse(image_ref=image.id if image else "")

    def RemoveImage(self, _request: Any, _context: Any) -> Any:
        """Images are pinned, so the kubelet's garbage collection leaves them alone."""
        return self._pb.RemoveImageResponse()

    def ImageFsInfo(self, _request: Any, _context: Any) -> Any:
        one = self._pb.UInt64Value(value=1)
        where = self._pb.FilesystemIdentifier(mountpoint=str(self._store.folder))
        usage = self._pb.FilesystemUsage(timestamp=time.time_ns(), fs_id=where, used_bytes=one, inodes_used=one)
        return self._pb.ImageFsInfoResponse(image_filesystems=[usage], container_filesystems=[usage])

    def _message(self, image: Image) -> Any:
        message = self._pb.Image(
            id=image.id,
            repo_tags=[image.name],
            repo_digests=[f"{image.name.rsplit(':', 1)[0]}@{image.id}"],
            size=1,
            spec=self._pb.ImageSpec(image=image.name),
            pinned=True,
        )
        user = image.user.partition(":")[0] or "0"
        if user.isdigit():
            message.uid.value = int(user)
        else:
            message.username = user
        return message
