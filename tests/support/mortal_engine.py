"""The simulated engine's server, which dies on a body that says `die now` and answers 500 to one that says `fail now`.

`python -m support.mortal_engine --config FILE.json`
"""

from __future__ import annotations

import os
import sys
from typing import Any

from plumage_engine.simulator import __main__ as simulator
from plumage_engine.simulator.http.completions import Receive, Scope, Send, respond

__all__ = ["Mortal"]


class Mortal:
    """The application that handles these two bodies."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        messages = [await receive()]
        while messages[-1].get("more_body"):
            messages.append(await receive())
        body = b"".join(message.get("body", b"") for message in messages)
        if b"die now" in body:
            os._exit(1)
        if b"fail now" in body:
            await respond(send, 500, b'{"error": {"message": "CUDA error", "code": 500}}')
            return
        kept = iter(messages)

        async def again() -> Any:
            return next(kept, None) or await receive()

        await self._app(scope, again, send)


if __name__ == "__main__":
    make_app = simulator.make_app
    simulator.make_app = lambda config: Mortal(make_app(config))  # type: ignore[assignment,return-value]
    sys.exit(simulator.main())
