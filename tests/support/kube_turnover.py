"""The order in which pods of a part become Ready and start to end, by the API server's events. No clocks are
compared."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

from support.kube_access import Access, until

__all__ = ["COST", "Followed", "Seen", "Turnover", "follow"]

COST = "controller.kubernetes.io/pod-deletion-cost"
_LONGEST_S = 1200


@dataclass(frozen=True)
class Seen:
    """A pod after one of its changes. `ending`: it was deleted, and drains or no longer exists. `cost`: its pod
    deletion cost, where it has one."""

    name: str
    ready: bool
    ending: bool
    cost: int | None = None

    @classmethod
    def of(cls, event: Mapping[str, Any]) -> Seen:
        """From an event of a watch."""
        pod = event["object"]
        conditions = pod.get("status", {}).get("conditions", ())
        ready = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
        ending = event["type"] == "DELETED" or "deletionTimestamp" in pod["metadata"]
        cost = (pod["metadata"].get("annotations") or {}).get(COST)
        return cls(pod["metadata"]["name"], ready, ending, None if cost is None else int(cost))


@dataclass(frozen=True)
class Followed:
    """A watch's events, one JSON document a line. The last line may be incomplete."""

    events: Path

    def seen(self) -> list[Seen]:
        lines = self.events.read_text().splitlines(keepends=True)
        return [Seen.of(json.loads(line)) for line in lines if line.endswith("\n")]

    def until_ending(self, pods: Collection[str]) -> None:
        until(lambda: set(pods) <= {one.name for one in self.seen() if one.ending}, f"{sorted(pods)} end")


@contextmanager
def follow(access: Access, namespace: str, selector: str, pods: Collection[str]) -> Iterator[Followed]:
    """Follows existing and new pods. `pods` names the existing ones, which shows when the watch has begun."""
    path = f"/api/v1/namespaces/{namespace}/pods?watch=1&timeoutSeconds={_LONGEST_S}&labelSelector={quote(selector)}"
    environment = {**os.environ, "KUBECONFIG": str(access.kubeconfig)}
    command = [str(access.programs["kubectl"]), "get", "--raw", path]
    with TemporaryDirectory() as folder:
        followed = Followed(Path(folder, "events"))
        with followed.events.open("wb") as events, subprocess.Popen(command, env=environment, stdout=events) as watch:
            try:
                until(lambda: set(pods) <= {one.name for one in followed.seen()}, "the watch of pods has begun")
                yield followed
                assert watch.poll() is None, "the watch of pods ended early, so its record is incomplete"
            finally:
                watch.kill()


@dataclass(frozen=True)
class Turnover:
    """Other pods replace the `old` ones, in the order that was seen."""

    old: Collection[str]
    seen: Sequence[Seen]

    def new(self) -> set[str]:
        return {one.name for one in self.seen} - {*self.old}

    def too_early(self) -> list[str]:
        """Old pods that started to end too early: before as many new ones were Ready as old ones had ended."""
        ready: set[str] = set()
        ending: list[str] = []
        early = []
        for one in self.seen:
            if one.name not in self.old and one.ready:
                ready.add(one.name)
            elif one.name in self.old and one.ending and one.name not in ending:
                ending.append(one.name)
                early += ending[len(ready) :][-1:]
        return early
