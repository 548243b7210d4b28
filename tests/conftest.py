"""What every test gets: its tier and time limit; what a run measures; and how transcripts are rewritten."""

import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import settings

from tests.costs import CostsPlugin
from tests.tiers import LIMIT_SECONDS, find_tier


def pytest_addoption(parser: pytest.Parser) -> None:
    """Offer --costs and --rewrite."""
    parser.addoption("--rewrite", action="store_true", help="write the transcripts anew instead of comparing them")
    parser.addoption("--costs", type=Path, help="write what the run costs into this file, as JSON")


@pytest.fixture(scope="session")
def rewrite(pytestconfig: pytest.Config) -> bool:
    """Whether transcripts are to be written anew."""
    return bool(pytestconfig.getoption("--rewrite"))


def pytest_configure(config: pytest.Config) -> None:
    """Count costs, and let no law fail because the machine was busy."""
    config.pluginmanager.register(CostsPlugin(config.getoption("--costs")), "costs")
    heed_signals()
    # A bare `python` is that of the tests, as for a user whose environment is activated.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    settings.register_profile("hvdrun", deadline=None, print_blob=True)
    settings.load_profile("hvdrun")


def heed_signals() -> None:
    """Undo what `nohup` or a script's `&` has ignored for us: what is tested would inherit it, and rightly obey."""
    for number, default in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, default)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test with its tier, and give it the tier's time limit."""
    for item in items:
        tier = find_tier(item)
        item.add_marker(tier)
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(LIMIT_SECONDS[tier]))
