"""Structured output: the tokens that a grammar allows next, from vLLM's bitmask."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["Grammar"]


class Grammar:
    """output: vLLM's `GrammarOutput`, a row of 32-bit words for each request, bit t of the row for token t."""

    def __init__(self, output: Any) -> None:
        self._rows = {name: row for row, name in enumerate(output.structured_output_request_ids)}
        self._bitmask = output.grammar_bitmask

    def allowed(self, request_id: str) -> list[int] | None:
        """Token ids, ascending; None for a request without a grammar."""
        row = self._rows.get(request_id)
        if row is None:
            return None
        words = np.ascontiguousarray(self._bitmask[row], dtype="<i4")
        bits = np.unpackbits(words.view(np.uint8), bitorder="little")
        found: list[int] = np.flatnonzero(bits).tolist()
        return found
