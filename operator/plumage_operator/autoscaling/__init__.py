"""The operator's autoscaler: polls routers and agents for reports, and decides how many replicas a pool should have.

Pure: `pods`, `pool_load`, `scaler`, `poll_schedule`. Thin I/O: `report_client`. Thin trigger: `loop`. The rules are in
`plumage.autoscaling`.
"""

from __future__ import annotations

from plumage_operator.autoscaling.loop import AutoscalingLoop
from plumage_operator.autoscaling.poll_schedule import INTERVAL
from plumage_operator.autoscaling.report_client import FleetClient
from plumage_operator.autoscaling.scaler import PoolScaler

__all__ = ["INTERVAL", "AutoscalingLoop", "FleetClient", "PoolScaler"]
