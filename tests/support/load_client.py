"""A steady load of conversations, which kube_load.py runs in a pod: `load_client.py JSON`, standard library alone.

Every request is reported twice as a line of JSON: when it is sent (`{"id", "sent", "group"}`), and when it ends.
There are no retries. `outcome` says what its client saw:
    ended   the whole answer, to `[DONE]`
    cut     an answer that began and was not finished
    lost    no first byte of a body, or another status than 200
`cached` and `prompt` are tokens by the answer's usage. The answering `replica` and the `policy` that chose it are from
the router's explanation.
"""

from __future__ import annotations

import http.client
import json
import random
import sys
import threading
import time
from typing import Any

BYTE_TIMEOUT = 120.0  # seconds for each byte; a router waits as long for a first byte before it tries another replica
TURNS = 4
WORDS = [a + b for a in ("ba", "ke", "lo", "mi", "nu", "pra", "ste", "tri") for b in ("dan", "fel", "gor", "hip", "s")]


def text(rng: random.Random, words: int) -> str:
    return " ".join(rng.choices(WORDS, k=words))


class Conversations:
    """The conversations of one worker. It keeps its connection as long as the server does. Its pace does not depend on
    the duration of answers."""

    def __init__(self, config: dict[str, Any], number: int) -> None:
        self.config = config
        self.number = number
        self.rng = random.Random(f"{config['seed']} {number}")
        self.count = 0
        self.connection: http.client.HTTPConnection | None = None

    def run(self) -> None:
        time.sleep(self.config["pace_s"] * self.number / self.config["workers"])
        while True:
            group = self.rng.randrange(self.config["groups"])
            system = text(random.Random(f"group {group}"), self.config["prefix_words"])
            messages = [{"role": "system", "content": system}]
            for _ in range(self.config.get("turns", TURNS)):
                began = time.monotonic()
                messages.append({"role": "user", "content": text(self.rng, 12)})
                messages.append({"role": "assistant", "content": self.ask(messages, group)})
                time.sleep(max(0.0, began + self.config["pace_s"] - time.monotonic()))

    def ask(self, messages: list[dict[str, str]], group: int) -> str:
        """The text of the answer that arrived."""
        self.count += 1
        row: dict[str, Any] = {"id": f"{self.number}-{self.count}", "sent": time.time(), "group": group}
        print_row(row)
        answer: list[str] = []
        try:
            self.exchange(messages, row, answer)
        except Exception as error:
            row.update(why=f"{type(error).__name__}: {error}")
            self.drop()
        row.setdefault("outcome", "cut" if "first" in row else "lost")
        print_row({**row, "over": time.time()})
        return "".join(answer)

    def exchange(self, messages: list[dict[str, str]], row: dict[str, Any], answer: list[str]) -> None:
        if self.connection is None:
            self.connection = http.client.HTTPConnection(self.config["host"], self.config["port"], timeout=BYTE_TIMEOUT)
        body = {
            "model": self.config["model"],
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": self.config["answer_tokens"],
            "messages": messages,
        }
        headers = {"Content-Type": "application/json"}
        if self.config["key"]:  # without the key a router refuses explanations
            headers |= {"X-Plumage-Explain": "1", "X-Plumage-Admin-Key": self.config["key"]}
        self.connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        response = self.connection.getresponse()
        if response.status != 200:
            row.update(why=f"{response.status}: {response.read(500).decode(errors='replace')}")
            return
        explained = json.loads(response.getheader("X-Plumage-Explain") or "{}")
        row.update(replica=explained.get("replica"), policy=explained.get("policy"))
        while line := response.readline():
            row.setdefault("first", time.time())
            if line.startswith(b"data: "):
                self.event(line[6:].strip(), row, answer)
        if row.get("outcome") != "ended" or response.will_close:
            self.drop()

    def event(self, data: bytes, row: dict[str, Any], answer: list[str]) -> None:
        if data == b"[DONE]":
            row["outcome"] = "ended"
            return
        event = json.loads(data)
        if "error" in event:
            row["why"] = str(event["error"].get("message"))
        answer.extend(choice["delta"].get("content") or "" for choice in event.get("choices", ()))
        if usage := event.get("usage"):
            row["prompt"] = usage["prompt_tokens"]
            row["cached"] = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)

    def drop(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None


LOCK = threading.Lock()


def print_row(row: dict[str, Any]) -> None:
    with LOCK:
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    settings = json.loads(sys.argv[1])
    workers = [threading.Thread(target=Conversations(settings, n).run, daemon=True) for n in range(settings["workers"])]
    for worker in workers:
        worker.start()
    time.sleep(settings["seconds"])  # the test deletes the pod long before this
