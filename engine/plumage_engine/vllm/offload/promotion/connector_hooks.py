"""Ties promotion to a live connector of vLLM: it receives steps and resets, and completes the connector's events.

Imported only for an engine that promotes, behind promotion's guard: a failure here leaves host memory as it is.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from plumage_engine.vllm.compat.kv_offload import (
    BUILD,
    UPDATE,
    OffloadingConnectorScheduler,
    OffloadingEventsTracker,
    generate_block_hash_extra_keys,
    promotion_problems,
)
from plumage_engine.vllm.counters import Counters
from plumage_engine.vllm.guard import Guard
from plumage_engine.vllm.offload.host_tier.store_manager import HostTierManager
from plumage_engine.vllm.offload.promotion.device_blocks import DeviceBlocks
from plumage_engine.vllm.offload.promotion.lookahead import next_waiting
from plumage_engine.vllm.offload.promotion.promoter import Promoter

__all__ = ["PromotingScheduler", "promote"]


class _DescribedEvents(OffloadingEventsTracker):
    """Adds the extra keys (salts, adapters, media) that vLLM omits from host memory's events.

    Without them a salted prefix would look like everyone's.
    plumage_guard: promotion's, which publishes the same chunks; set by `promote`.
    """

    plumage_guard: Guard

    def _build_event_metadata(self, req: Any, group_config: Any, chunk_idx: int) -> Any:
        metadata = super()._build_event_metadata(req, group_config, chunk_idx)
        try:
            metadata.extra_keys = _extra_keys(req, group_config, chunk_idx)
        except Exception as error:
            self.__class__ = OffloadingEventsTracker
            self.plumage_guard.failed(error)
        return metadata


def _extra_keys(req: Any, group_config: Any, chunk_idx: int) -> tuple[Any, ...]:
    """The extra keys of each block of a chunk."""
    start, size = chunk_idx * group_config.tokens_per_chunk, group_config.tokens_per_block
    ends = range(start + size, start + group_config.tokens_per_chunk + 1, size)
    return tuple(generate_block_hash_extra_keys(req, end - size, end, 0)[0] for end in ends)


class PromotingScheduler(OffloadingConnectorScheduler):
    """The class that `promote` gives to the connector's live scheduler half.

    promoter: set by `promote`.
    """

    promoter: Promoter

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int, *args: Any, **kwargs: Any) -> Any:
        """vLLM asks how many tokens host memory adds to those found on the device."""
        answer = super().get_num_new_matched_tokens(request, num_computed_tokens, *args, **kwargs)
        self.promoter.request_found(request, num_computed_tokens)
        return answer

    def has_pending_push_work(self) -> bool:
        """Whether the engine must step without requests."""
        return _pending(self.promoter) or bool(super().has_pending_push_work())

    def reset_cache(self) -> None:
        """Host memory is emptied."""
        self.promoter.reset()
        super().reset_cache()


def _pending(promoter: Promoter) -> bool:
    try:
        return promoter.pending
    except Exception as error:
        promoter.failed(error)
        return False


def _build(self: PromotingScheduler, scheduler_output: Any) -> Any:
    self.promoter.step(scheduler_output)
    return getattr(super(PromotingScheduler, self), BUILD)(scheduler_output)


def _update(self: PromotingScheduler, connector_output: Any) -> Any:
    self.promoter.ended(connector_output)
    return getattr(super(PromotingScheduler, self), UPDATE)(connector_output)


setattr(PromotingScheduler, BUILD, _build)
setattr(PromotingScheduler, UPDATE, _update)


def promote(scheduler: Any, connector: Any, manager: HostTierManager, guard: Guard, counters: Counters) -> None:
    """Switch promotion on, or refuse `guard` and change nothing where it conflicts with vLLM or the options."""
    pool = scheduler.kv_cache_manager.block_pool
    if reasons := promotion_problems(connector, pool) or _conflicts(connector):
        guard.refuse(reasons)
    else:
        _start(scheduler, connector, manager, guard, counters)


def _start(scheduler: Any, connector: Any, manager: HostTierManager, guard: Guard, counters: Counters) -> None:
    caches = scheduler.kv_cache_manager
    group = connector.config.kv_group_configs[0]

    def evicted(count: int) -> None:
        counters.add("evictions", count, "promotion")

    device = DeviceBlocks(caches.block_pool, group.group_idx, group.tokens_per_block, evicted)
    promoter = Promoter(
        connector, manager, device, guard, counters,
        reserve=scheduler.max_num_running_reqs,
        waiting=partial(next_waiting, scheduler, manager.settings.promotion_lookahead),
    )  # fmt: skip
    connector.promoter = promoter
    connector.__class__ = PromotingScheduler
    connector._events_tracker.plumage_guard = guard
    connector._events_tracker.__class__ = _DescribedEvents
    own = caches.reset_prefix_cache

    def reset_prefix_cache(*args: Any, **kwargs: Any) -> Any:
        promoter.cancel_copies()
        return own(*args, **kwargs)

    caches.reset_prefix_cache = reset_prefix_cache


def _conflicts(connector: Any) -> list[str]:
    """Why promotion can't work with this model and these options."""
    config = connector.config
    groups = config.kv_group_configs
    if len(groups) != 1 or groups[0].sliding_window_size_in_chunks is not None or groups[0].is_eagle_group:
        return ["promotion needs a model with one group of full attention"]
    if config.blocks_per_chunk != 1:
        return ["promotion needs chunks of one block: remove blocks_per_chunk and block_size of the connector"]
    if config.dcp_world_size != 1:
        return ["promotion does not work with decode context parallelism"]
    if connector._chunks_being_loaded is None:
        return ["promotion needs prefix caching"]
    return []
