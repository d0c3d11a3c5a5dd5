"""`python -m support.operator_checked_often SECONDS ARGUMENT…`: the operator with a short interval between comparisons
of its watches with the API server, so that a test need not wait for minutes."""

from __future__ import annotations

import sys
from functools import partial
from unittest.mock import patch

from plumage_operator import manager
from plumage_operator.__main__ import main
from plumage_operator.cache.watch_check import WatchCheck

__all__: list[str] = []

if __name__ == "__main__":
    with patch.object(manager, "WatchCheck", partial(WatchCheck, every=float(sys.argv[1]))):
        sys.exit(main(sys.argv[2:]))
