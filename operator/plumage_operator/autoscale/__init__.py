"""The autoscaler of the operator: asks routers and agents for their figures, and says how many replicas a pool wants.

Pure: `pods`, `window`, `figures`, `word`, `scaler`, `pace`, `trouble`. Thin I/O: `client`. Thin trigger: `loop`. The
rules themselves are `plumage.autoscaling`.
"""

from __future__ import annotations

from plumage_operator.autoscale.client import FleetClient
from plumage_operator.autoscale.loop import Autoscaling
from plumage_operator.autoscale.pace import INTERVAL
from plumage_operator.autoscale.scaler import PoolScaler

__all__ = ["INTERVAL", "Autoscaling", "FleetClient", "PoolScaler"]
