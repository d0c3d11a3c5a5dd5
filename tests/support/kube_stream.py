"""One long answer that is streamed to a client in the cluster, while a test changes the pool's pods."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass

from support.kube_access import Access, client_pod, until
from support.kube_install import Pool

__all__ = ["Stream"]

_FIRST_S, _WHOLE_S = 180.0, 240.0
# Prints `began` at the first token, and at the end what it received: the number of tokens by their events and by the
# usage that the router counts, whether [DONE] arrived, and the error.
_CLIENT = """
import json, sys, time, urllib.error, urllib.request
host, tokens = sys.argv[1], int(sys.argv[2])
body = {"model": "tiny-chat", "stream": True, "stream_options": {"include_usage": True}, "max_tokens": tokens,
        "ignore_eos": True, "messages": [{"role": "user", "content": "Give me all of it"}]}
asked = urllib.request.Request(f"http://{host}:8000/v1/chat/completions", json.dumps(body).encode(),
                               {"Content-Type": "application/json"})
result = {"pieces": 0, "usage": 0, "done": False, "why": ""}

def answer(end=time.monotonic() + 120):
    while True:
        try:
            return urllib.request.urlopen(asked, timeout=120)
        except urllib.error.HTTPError:
            raise
        except urllib.error.URLError:  # a new Service's rules reach the nodes a moment after its pods are ready
            if time.monotonic() > end:
                raise
            time.sleep(0.5)

def take(data):
    if data == b"[DONE]":
        result["done"] = True
        return
    event = json.loads(data)
    result["why"] = result["why"] or event.get("error", {}).get("message", "")
    result["usage"] = (event.get("usage") or {}).get("completion_tokens", result["usage"])
    if any(choice["delta"].get("content") for choice in event.get("choices", ())):
        result["pieces"] += 1
        if result["pieces"] == 1:
            print("began", flush=True)

try:
    with answer() as lines:
        for line in lines:
            if line.startswith(b"data: "):
                take(line[6:].strip())
except Exception as error:
    result["why"] = repr(error)
print(json.dumps(result), flush=True)
"""


@dataclass(frozen=True)
class Stream:
    """A pod in an existing namespace. It requests this many tokens once, without retries."""

    access: Access
    namespace: str
    name: str
    tokens: int

    @classmethod
    def start(cls, access: Access, namespace: str, pool: Pool, tokens: int) -> Stream:
        """Returns when the first token has arrived."""
        name = f"stream-{uuid.uuid4().hex[:8]}"
        pod = client_pod(name, access.image, _CLIENT, (pool.host, str(tokens)))
        access.api.create("pods", namespace, pod)
        stream = cls(access, namespace, name, tokens)
        until(lambda: bool(stream.lines()), f"the first token of {pool.name} came", _FIRST_S)
        assert stream.under_way(), stream.lines()
        return stream

    def under_way(self) -> bool:
        """Whether it has started and not ended."""
        return self.lines() == ["began"]

    def end(self) -> dict[str, object]:
        """The result at the end: `pieces` and `usage` are tokens, `done` says whether [DONE] arrived, `why` has the
        error."""
        until(lambda: len(self.lines()) > 1, f"{self.name} is over", _WHOLE_S)
        found: dict[str, object] = json.loads(self.lines()[-1])
        return found

    def lines(self) -> list[str]:
        return self.access.api.log(self.name, self.namespace).splitlines()
