"""Applies thousands of objects, and waits until each is as expected.

It polls objects one by one, a few unfinished ones in each round. A watch or a list of all objects would be a load of
its own besides the measured one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config.kube_config import load_kube_config

from plumage.errors import PlumageError
from plumage_operator.kinds import KINDS
from plumage_operator.kube.client import KubeClient, resource_path

__all__ = ["Course", "TooSlowError", "administrator", "create_all", "path", "until_all"]

_AT_ONCE: Final = 16
_READ_AT_ONCE: Final = 40
_PAUSE: Final = 0.5  # seconds
_PLURALS: Final = {
    "InferencePool": "inferencepools",
    "Namespace": "namespaces",
    **{kind: plural for kind, (_, plural) in KINDS.items()},
}
Advance = Callable[[int], None]


class TooSlowError(PlumageError):
    """The objects were not as expected in time."""


@dataclass(slots=True)
class Course:
    """How many were as expected, and when: seconds since `began`."""

    began: float
    seconds: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)

    @property
    def took(self) -> float:
        """Seconds until the last of them was."""
        return self.seconds[-1]


async def administrator(kubeconfig: Path) -> Any:
    """The configuration of a client with all rights."""
    configuration = Configuration()
    await load_kube_config(  # type: ignore[no-untyped-call]
        config_file=str(kubeconfig), client_configuration=configuration, persist_config=False
    )
    return configuration


def path(thing: Mapping[str, Any]) -> str:
    """The path of an object."""
    meta = thing["metadata"]
    return resource_path(thing["apiVersion"], _PLURALS[thing["kind"]], meta.get("namespace"), meta["name"])


async def create_all(api: KubeClient, things: Iterable[Mapping[str, Any]]) -> None:
    """A few at a time, in order."""
    waiting = iter(things)

    async def some() -> None:
        for thing in waiting:
            await api.request("POST", path(thing).rpartition("/")[0], body=thing)

    await asyncio.gather(*(some() for _ in range(_AT_ONCE)))


async def until_all(
    api: KubeClient, paths: Sequence[str], holds: Callable[[Mapping[str, Any]], bool], course: Course, within: float,
    advance: Advance,
) -> None:  # fmt: skip
    """Fills `course`. TooSlowError names objects that are not as expected after `within` seconds."""
    left = list(paths)
    while left:
        some, rest = left[:_READ_AT_ONCE], left[_READ_AT_ONCE:]
        found = await asyncio.gather(*(api.request("GET", one) for one in some))
        waiting = [one for one, thing in zip(some, found, strict=True) if not holds(thing)]
        left = rest + waiting
        if len(waiting) < len(some):
            advance(len(some) - len(waiting))
            course.seconds.append(time.monotonic() - course.began)
            course.counts.append(len(paths) - len(left))
        if waiting:
            await asyncio.sleep(_PAUSE)
        if left and time.monotonic() - course.began > within:
            raise TooSlowError(f"{len(left)} of {len(paths)} are not there after {within:.0f} s, such as {left[0]}")
