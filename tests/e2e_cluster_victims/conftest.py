"""The cluster and the install of tests/e2e_cluster.

These tests have their own folder, because ten pairs take twenty minutes (`make e2e-victims`).
"""

from __future__ import annotations

from e2e_cluster.conftest import access, before, installed, own

__all__ = ["access", "before", "installed", "own"]
