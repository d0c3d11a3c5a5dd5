"""One long answer that is streamed to a client in the cluster while something is done to those who give it."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass

from support.kube_access import Access, client_pod, until
from support.kube_install import Pool

__all__ = ["Stream"]

_FIRST_S, _WHOLE_S = 180.0, 240.0
# Prints `began` at the first token, and at the end what came: how many tokens by their events and by the usage that
# the router counts, whether [DONE] was among it, and what went wrong.
_CLIENT = """
import json, sys, time, urllib.error, urllib.request
host, tokens = sys.argv[1], int(sys.argv[2])
body = {"model": "tiny-chat", "stream": True, "stream_options": {"include_usage": True}, "max_tokens": tokens,
        "ignore_eos": True, "messages": [{"role": "user", "content": "Tell me all of it"}]}
asked = urllib.request.Request(f"http://{host}:8000/v1/chat/completions", json.dumps(body).encode(),
                               {"Content-Type": "application/json"})
told = {"pieces": 0, "usage": 0, "done": False, "why": ""}

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
        told["done"] = True
        return
    event = json.loads(data)
    told["why"] = told["why"] or event.get("error", {}).get("message", "")
    told["usage"] = (event.get("usage") or {}).get("completion_tokens", told["usage"])
    if any(choice["delta"].get("content") for choice in event.get("choices", ())):
        told["pieces"] += 1
        if told["pieces"] == 1:
            print("began", flush=True)

try:
    with answer() as lines:
        for line in lines:
            if line.startswith(b"data: "):
                take(line[6:].strip())
except Exception as error:
    told["why"] = repr(error)
print(json.dumps(told), flush=True)
"""


@dataclass(frozen=True)
class Stream:
    """A pod, in a namespace that stays, which is asked for so many tokens by one request that is never repeated."""

    access: Access
    namespace: str
    name: str
    tokens: int

    @classmethod
    def start(cls, access: Access, namespace: str, pool: Pool, tokens: int) -> Stream:
        """Under way: its first token has come."""
        name = f"stream-{uuid.uuid4().hex[:8]}"
        pod = client_pod(name, access.image, _CLIENT, (pool.host, str(tokens)))
        access.kubectl("-n", namespace, "apply", "-f", "-", stdin=json.dumps(pod))
        stream = cls(access, namespace, name, tokens)
        until(lambda: bool(stream.lines()), f"the first token of {pool.name} came", _FIRST_S)
        assert stream.under_way(), stream.lines()
        return stream

    def under_way(self) -> bool:
        """It has begun, and has not ended."""
        return self.lines() == ["began"]

    def end(self) -> dict[str, object]:
        """What came, once it is over: `pieces` and `usage` are tokens, `done` whether its end was told, `why` not."""
        until(lambda: len(self.lines()) > 1, f"{self.name} is over", _WHOLE_S)
        told: dict[str, object] = json.loads(self.lines()[-1])
        return told

    def lines(self) -> list[str]:
        return self.access.kubectl("-n", self.namespace, "logs", self.name, check=False).splitlines()
