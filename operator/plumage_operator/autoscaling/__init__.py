"""The autoscaler of the operator: asks routers and agents for their figures, and says how many replicas a pool wants.

Pure: `pods`, `window`, `figures`, `word`, `scaler`, `pace`, `trouble`. Thin I/O: `client`. Thin trigger: `loop`. The
rules themselves are `plumage.autoscaling`.
"""

from __future__ import annotations

from plumage_operator.autoscaling.loop import AutoscalingLoop
from plumage_operator.autoscaling.poll_schedule import INTERVAL
from plumage_operator.autoscaling.report_client import FleetClient
from plumage_operator.autoscaling.scaler import PoolScaler

__all__ = ["INTERVAL", "AutoscalingLoop", "FleetClient", "PoolScaler"]
