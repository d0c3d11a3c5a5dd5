"""The default of each setting, once: manifest models, configuration files and constructors of policies read it here.

Units are the manifest's. A constructor that takes another unit (seconds for milliseconds) converts the constant. A new
setting gets its constant here first; `plumage bench defaults` and its tests fail where a second copy differs.
"""

from __future__ import annotations

from typing import Final

# spec.model
ADAPTER_SLOTS: Final = 4
ADAPTER_MAX_RANK: Final = 16

# spec.engine.feather
FEATHER_POLICY: Final = "ChtOrder"
"""The tree's order without STOP: on no device that pools run on has STOP paid as a default (decision 0196)."""
CHUNK_TOKENS: Final = 64
CANDIDATE_ORDER: Final = "TipLoss"
MAX_WAIT_SECONDS: Final = 10
ORDER_BATCH: Final = False
STOP_FORM: Final = "Adaptive"
CREDIT: Final = "Trial"
LOSS_THRESHOLD: Final = 5
RELAXED_LOSS_THRESHOLD: Final = 7
RELAXED_PEERS: Final = 10
MAX_BATCH_FLOOR: Final = 10
EXPLORATION: Final = "0.05"
PAPER_EXPLORATION: Final = "1.4142"
FORGETTING: Final = "Discounted"
DISCOUNT: Final = "0.9"
DISCOUNT_INTERVAL: Final = 64
WINDOW: Final = 512
LEARNING_RATE: Final = "0.1"
DISCOUNT_FACTOR: Final = "0.9"
MINIMUM_EXPLORATION: Final = "0.05"
EXPLORATION_DECAY: Final = "0.8"
PAPER_EXPLORATION_DECAY: Final = "0.999"

# spec.engine.eviction, spec.engine.hostMemory, spec.engine.batchLimit
EVICTION_POLICY: Final = "Hotness"
PAPER_PRIORITY: Final = "frequency + clock / length"
AGING_INTERVAL: Final = 100
FILTER_BITS: Final = 8
"""Width of fingerprint, clock and depth in HotPrefix's filter, the fingerprint of the host tier's apart."""
FREQUENCY_BITS: Final = 16
HOST_FINGERPRINT_BITS: Final = 16
HOST_PRIORITY: Final = "frequency * clock"
ADMISSION: Final = "Hotness"
PROMOTION: Final = "Hotness"
BATCH_LIMIT: Final = "Adaptive"

# spec.engine.simulator
DEVICE: Final = "GPU"
TIME_SCALE_PERCENT: Final = 100
BLOCK_SIZE: Final = 16
CACHE_BLOCKS: Final = 12_500
MAX_NUM_SEQS: Final = 64
MAX_BATCHED_TOKENS: Final = 8192
SEED: Final = 0

# spec.flowControl
QUEUE_REQUESTS: Final = 1_000
QUEUE_SECONDS: Final = 60
ENGINE_QUEUE_MILLISECONDS: Final = 500
QUEUE_ORDER: Final = "Deadline"

# spec.router
ENDPOINT_PICKER_PORT: Final = 9002
ROUTING_POLICY: Final = "Lbgr"
MISS_MILLISECONDS_PER_KILOTOKEN: Final = 1000
HIT_MILLISECONDS_PER_KILOTOKEN: Final = 0
RLS_FORGETTING: Final = "0.992"
CONSIDERED_REPLICAS: Final = 64
DECAY_INTERVAL_MILLISECONDS: Final = 20
PENDING_OWNER_SECONDS: Final = 10
UNREPORTED_OWNER_SECONDS: Final = 60  # the same where no engine's event can confirm it
MAX_BODY_BYTES: Final = "16Mi"
MAX_CONNECTIONS: Final = 20_000
MAX_IN_FLIGHT: Final = 10_000
CONNECT_SECONDS: Final = 2
FIRST_BYTE_SECONDS: Final = 120
IDLE_SECONDS: Final = 120

# spec.directory.warmup, spec.rollout
WARMUP: Final = True
WARMUP_TOKENS: Final = 65_536
WARMUP_SECONDS: Final = 60
DRAIN_SECONDS: Final = 120
