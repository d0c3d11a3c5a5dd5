"""Seeded workloads with the shapes of the papers: prompts as block names, and their arrivals. Few real texts are
available.

The same seed gives the same prompts and the same arrivals for every measurement.
"""

from __future__ import annotations

from plumage_bench.workloads.adapters import AdaptersShape, adapter_prompts
from plumage_bench.workloads.arrivals import Arrival, ClosedLoop, OpenLoop, Source, Timed
from plumage_bench.workloads.article import ArticleKind, ArticleShape, agent_sessions, article_prompts, article_sessions
from plumage_bench.workloads.fewshot import FEWSHOT_SUITES, FewshotShape, fewshot_prompts
from plumage_bench.workloads.gsp import GspShape, gsp_prompts
from plumage_bench.workloads.hotspot import HOT, HotspotShape, hotspot_arrivals
from plumage_bench.workloads.longdoc import LongdocShape, longdoc_prompts
from plumage_bench.workloads.multiturn import MultiturnShape, conversations
from plumage_bench.workloads.prompts import BlockNames, Prompt

__all__ = [
    "FEWSHOT_SUITES",
    "HOT",
    "AdaptersShape",
    "Arrival",
    "ArticleKind",
    "ArticleShape",
    "BlockNames",
    "ClosedLoop",
    "FewshotShape",
    "GspShape",
    "HotspotShape",
    "LongdocShape",
    "MultiturnShape",
    "OpenLoop",
    "Prompt",
    "Source",
    "Timed",
    "adapter_prompts",
    "agent_sessions",
    "article_prompts",
    "article_sessions",
    "conversations",
    "fewshot_prompts",
    "gsp_prompts",
    "hotspot_arrivals",
    "longdoc_prompts",
]
