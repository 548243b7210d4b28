"""Prints what a long test has found out beside that it passed."""

import pytest


def show(request: pytest.FixtureRequest, text: str) -> None:
    """Write it to the terminal, also where pytest keeps what tests print to itself."""
    plugins = request.config.pluginmanager
    with plugins.getplugin("capturemanager").global_and_fixture_disabled():
        plugins.getplugin("terminalreporter").write_line(f"\n{text}")
