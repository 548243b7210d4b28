"""Lets an `assert` that fails on a rank be explained as pytest does it: with the differences, as -v asks for."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest

_SETTINGS = ("truncation_limit_lines", "truncation_limit_chars")


def read_settings(config: pytest.Config) -> tuple[str, ...]:
    """What pytest's options and its file say of explanations, as `-o` takes it."""
    settings = [f"verbosity_assertions={config.get_verbosity('assertions')}"]
    for name in _SETTINGS:
        try:
            value = config.getini(name)
        except ValueError:  # an older pytest
            continue
        if value is not None:
            settings.append(f"{name}={value}")
    return tuple(settings)


@contextmanager
def explains_assertions(settings: tuple[str, ...]) -> Iterator[None]:
    """Within it, assertions that fail are explained.

    pytest's own plugin for that does it around each test; it wants to know the configuration, and no more of the test.
    """
    config = make_config(settings)
    plugin: Any = config.pluginmanager.get_plugin("assertion")
    around = plugin.pytest_runtest_protocol(SimpleNamespace(ihook=config.hook, config=config))
    next(around)
    try:
        yield
    finally:
        around.close()


@cache
def make_config(settings: tuple[str, ...]) -> pytest.Config:
    """A configuration of pytest for this process: no file, conftest or plugin but pytest's own takes part."""
    overrides = [word for setting in settings for word in ("-o", setting)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        patch.delenv("PYTEST_PLUGINS", raising=False)
        words = ["-s", "--assert=plain", "--noconftest", "-c", os.devnull, *overrides]
        config = pytest.Config.fromdictargs({}, words)
    config.option.assertmode = "rewrite"  # as the test's own module; nothing is rewritten here
    return config
