"""The cells and contenders of `vllm-order`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from plumage.errors import ConfigurationError
from plumage_bench.benches.vllm_feather import contenders as feather
from plumage_bench.benches.vllm_feather.cells import BLOCK, Cell

__all__ = ["CELLS", "CONTENDERS", "PRODUCT", "QUICK_CELLS", "QUICK_CONTENDERS", "Cell", "chosen"]


def _room(prefixes: int, prefix: int, batch: int, output: int) -> int:
    """KV blocks for that many prefixes, and for the batch's own tokens."""
    return prefixes * (prefix // BLOCK + 1) + (batch + 1) * (2 + output // BLOCK) + prefix // BLOCK


CELLS: Final = (
    Cell("two levels", 8, levels=2),
    Cell("three levels", 8, levels=3),
    Cell("unequal answers", 8, outputs=(16, 128)),
    Cell("three levels, unequal answers", 8, levels=3, outputs=(16, 128)),
    Cell("step", 8, requests=192, rate=2.0, step=8.0),
    Cell("cold groups", 20, requests=120, room=_room(4, 4096, 16, 64)),
)
"""8 groups of 4,096 tokens, 16 requests at a time."""

_SMALL: Final = Cell("small", 8, prefix=2048, requests=64, output=32, batch=8)
QUICK_CELLS: Final = (
    replace(_SMALL, name="two levels", levels=2),
    replace(_SMALL, name="three levels", levels=3),
    replace(_SMALL, name="unequal answers", outputs=(8, 64)),
    replace(_SMALL, name="step", requests=56, rate=4.0, step=16.0),
    replace(_SMALL, name="cold groups", groups=10, requests=50, room=_room(2, 2048, 8, 32)),
)
"""Half the prefix, the batch and the answers, so that the bound of a pool's ageing is hardly reached."""

_BY_LABEL: Final = {one.label: one for one in feather.CONTENDERS}
PRODUCT: Final = replace(feather.PRODUCT, only=())
_LEVELS: Final = tuple(cell.name for cell in CELLS if cell.levels > 1)
_ALONE: Final = replace(feather.ORDER, label="one group", homogeneous=True, only=_LEVELS)
CONTENDERS: Final = (
    feather.FCFS, PRODUCT, feather.ORDER, _BY_LABEL["predictive"], _BY_LABEL["oracle"], _BY_LABEL["DFS-W"],
    _BY_LABEL["LPM"], _BY_LABEL["marginal"], _ALONE,
)  # fmt: skip
QUICK_CONTENDERS: Final = (PRODUCT, _BY_LABEL["oracle"])


def chosen(what: str, all_of: Sequence[Cell], names: str | None) -> Sequence[Cell]:
    """The cells that `names` lists, separated by semicolons; all if it is None. ConfigurationError for others."""
    if names is None:
        return all_of
    known = {cell.name: cell for cell in all_of}
    wanted = names.split(";")
    if unknown := [name for name in wanted if name not in known]:
        raise ConfigurationError(f"no {what} named {unknown[0]!r}; there are: {', '.join(known)}")
    return [known[name] for name in wanted]
