"""A pool's metrics for other scalers: `external.metrics.k8s.io` for HorizontalPodAutoscalers, and JSON for KEDA.

Pure: `pool_metrics`, `api_documents`. Thin I/O: `tls`, `server`, `json_page`.
"""

from __future__ import annotations

from plumage_operator.external_metrics.json_page import add_pool_page
from plumage_operator.external_metrics.pool_metrics import PoolSample, pool_samples
from plumage_operator.external_metrics.server import ExternalMetricsServer
from plumage_operator.external_metrics.tls import FrontProxy, read_front_proxy

__all__ = ["ExternalMetricsServer", "FrontProxy", "PoolSample", "add_pool_page", "pool_samples", "read_front_proxy"]
