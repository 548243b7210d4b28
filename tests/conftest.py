"""What every test gets: its tier and time limit; what a run measures; and how transcripts are rewritten."""

import gc
import os
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.costs import Budgets, CostsPlugin, name_file, read_shard
from tests.tiers import LIMIT_SECONDS, Tier, find_tier, leads_to_pure

if TYPE_CHECKING:
    from tests.worker_runtime.ranks import RankPool

# The fixtures import what they need: the pure tests do without torch.


def pytest_addoption(parser: pytest.Parser) -> None:
    """Offer --rewrite, --shard and --costs."""
    parser.addoption("--rewrite", action="store_true", help="write the transcripts anew instead of comparing them")
    parser.addoption("--shard", type=read_shard, default=(1, 1), metavar="K/N", help="run the K-th of N parts")
    parser.addoption("--costs", type=Path, help="write what the run costs into this file, as JSON")


@pytest.fixture(scope="session")
def rewrite(pytestconfig: pytest.Config) -> bool:
    """Whether transcripts are to be written anew."""
    return bool(pytestconfig.getoption("--rewrite"))


@pytest.fixture(scope="session")
def rank_pools() -> "Iterator[dict[str, RankPool]]":
    """Some ranks for each type of device, that many tests share."""
    from tests.worker_runtime.devices import DEVICES  # noqa: PLC0415 - pure tests do without torch
    from tests.worker_runtime.ranks import RankPool  # noqa: PLC0415 - pure tests do without torch

    pools = {device: RankPool(device) for device in DEVICES}
    yield pools
    for pool in pools.values():
        pool.close()


@pytest.fixture(scope="session")
def nccl_objection(rank_pools: "dict[str, RankPool]") -> str:
    """Why NCCL does not connect ranks on the cards that there are; "" if it does."""
    from tests.worker_runtime.devices import CUDA  # noqa: PLC0415 - pure tests do without torch
    from tests.worker_runtime.transport import find_objection  # noqa: PLC0415 - pure tests do without torch

    return find_objection(rank_pools[CUDA])


def pytest_configure(config: pytest.Config) -> None:
    """Count costs, let no law fail because the machine was busy, and let tests fork as workers do.

    gRPC's handlers for fork() hang processes that a `DataLoader` forks: it starts without them, as in a worker.
    """
    if config.option.markexpr != Tier.PURE:
        from worker_runtime.rendezvous import import_client  # noqa: PLC0415 - pure tests need no gRPC

        import_client()
    config.pluginmanager.register(CostsPlugin(config.getoption("--costs")), "costs")
    heed_signals()
    # A bare `python` is that of the tests, as for a user whose environment is activated.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    settings.register_profile("hvdrun", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
    settings.load_profile("hvdrun")


def heed_signals() -> None:
    """Undo what `nohup` or a script's `&` has ignored for us: what is tested would inherit it, and rightly obey."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        default = signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, default)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Let `pytest -m pure` import nothing but pure tests."""
    if config.option.markexpr != Tier.PURE or not (collection_path.is_dir() or collection_path.suffix == ".py"):
        return None
    return not leads_to_pure(str(collection_path.relative_to(config.rootpath))) or None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Spare later garbage collections the modules of all tests, and what these import: each took a third of a second.

    What exists by now is kept to the end. Children that are forked share its memory.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None, None, None]:
    """Mark every test of `make test` with its tier, limit its time, and keep this shard's files of those selected."""
    for item in items:
        tier = find_tier(item)
        if item.get_closest_marker("nightly") is None:
            item.add_marker(tier.value)
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(LIMIT_SECONDS[tier]))
    yield
    shard, shards = config.getoption("--shard")
    files = Budgets.read("nightly").deal({name_file(item) for item in items}, shards)[shard - 1]
    config.hook.pytest_deselected(items=[item for item in items if name_file(item) not in files])
    items[:] = [item for item in items if name_file(item) in files]
