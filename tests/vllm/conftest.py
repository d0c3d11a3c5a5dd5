"""Fixtures of the tests against real vLLM. `.venv-vllm`'s python runs them; all other tests run without vLLM.

tiny_model: a folder with a small Llama that has a token for each byte; bpe_model: one with 32,000 tokens. start_engine:
an engine in this process; start_server: an API server in its own process. Both are ended when the test ends.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from support.ports import free_port
from support.vllm_forking import customize, forked, start_fork_server

from plumage_bench.vllm.engine import Engine, prepare_environment, running
from plumage_bench.vllm.server import Server
from plumage_engine.vllm.tiny_model import write_model

prepare_environment()  # before the first import of vLLM
_SITE = Path(__file__).parents[1] / "support" / "fewer_collections"
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(_SITE), os.environ.get("PYTHONPATH"))))
customize()

# Warnings of vLLM and torch are ignored. A warning that Plumage's modules cause is an error, as in all tests.
_OTHERS = "torch|vllm"


def pytest_configure(config: pytest.Config) -> None:
    if find_spec("torch") is None:
        raise pytest.UsageError("tests/vllm needs vLLM beside it: make test ARGS=tests/vllm")
    config.addinivalue_line("filterwarnings", rf"ignore:::({_OTHERS})(\.|$)")
    start_fork_server()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The start of an engine takes 4 to 15 s of CPU time, and longer on a busy machine."""
    for item in items:
        if Path(__file__).parent in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session", autouse=True)
def _imports_are_not_collected() -> Iterator[None]:
    """An engine's start and end run garbage collection eight times, over all objects that the imports of torch and vLLM
    made. That takes four fifths of their time. Here the imported objects are frozen once, and vLLM may not freeze its
    engine's own. The first engine imports and caches as much again, so its remains are frozen too. Each start also
    reads the entry points of all installed packages, which do not change."""
    import vllm.v1.core.sched.async_scheduler
    import vllm.v1.engine.core
    import vllm.v1.engine.llm_engine
    import vllm.v1.worker.cpu_worker  # noqa: F401

    close = Engine.close

    def close_first(engine: Engine) -> None:
        close(engine)
        patch.setattr(Engine, "close", close)
        gc.freeze()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Engine, "close", close_first)
        patch.setattr(metadata, "entry_points", cache(metadata.entry_points))
        patch.setattr("vllm.v1.engine.core.freeze_gc_heap", lambda: None)
        patch.setattr("vllm.v1.worker.gpu_worker.freeze_gc_heap", lambda: None)
        patch.setattr(gc, "unfreeze", lambda: None)
        gc.collect()
        gc.freeze()
        yield
    gc.unfreeze()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="session")
def bpe_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "bpe", tokenizer="bpe")


@pytest.fixture
def start_engine(tiny_model: Path) -> Iterator[Callable[..., Engine]]:
    """Call it with EngineArgs' fields. A process has room for one engine, so the one before is closed."""
    with ExitStack() as stack:

        def start(**arguments: Any) -> Engine:
            stack.close()
            chosen = {"dtype": "float32"} | arguments  # CPUs without bfloat16 instructions need a fifth longer for it
            return stack.enter_context(running(chosen.pop("model", tiny_model), **chosen))

        yield start


@pytest.fixture
def start_server(tiny_model: Path, tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Call it with arguments of vLLM's command line, and with `model` or `environment` by name."""
    with ExitStack() as stack:

        def start(*arguments: str, **named: Any) -> Server:
            port, model = free_port(), named.pop("model", tiny_model)
            return stack.enter_context(forked(model, port, tmp_path / f"vllm-{port}.log", arguments, **named))

        yield start
