"""Tables fill modules: with what there is, the rest left out, and with a sentence where everything is missing."""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module to take names from."""
    module = ModuleType("tank")
    vars(module).update(water=object(), _mud=object(), none=None)
    monkeypatch.setitem(sys.modules, "tank", module)
    return module


def offer(table: dict[str, tuple[str, ...]], **namespace: object) -> dict[str, Any]:
    """The namespace of a module `glass` after the table has filled it."""
    filled = {"__name__": "glass", **namespace}
    import_module("horovod._offering").offer(filled, table)
    return filled


def test_names_are_the_things_themselves(source: ModuleType) -> None:
    filled = offer({"tank": ("water", "_mud", "none")})
    assert filled["water"] is source.water
    assert filled["_mud"] is source._mud
    assert filled["none"] is None
    assert filled["__all__"] == ["water", "none"]


@pytest.mark.usefixtures("source")
def test_what_is_not_there_is_left_out() -> None:
    filled = offer({"tank": ("wine",), "tank.deep": ("pearls",), "cellar": ("beer",)}, __all__=["air"])
    assert filled == {"__name__": "glass", "__all__": ["air"]}


@pytest.mark.parametrize(("missing", "told"), [("worker_runtime", "has no hvdrun"), ("torch", "has no PyTorch")])
def test_what_everything_needs_is_named(monkeypatch: pytest.MonkeyPatch, missing: str, told: str) -> None:
    def refuse(_: str) -> None:
        raise ModuleNotFoundError(name=missing)

    monkeypatch.setattr(import_module("horovod._offering"), "import_module", refuse)
    with pytest.raises(ImportError, match=rf"^glass cannot be imported: {sys.executable} {told}") as caught:
        offer({"worker_runtime.torch": ("rank",)})
    assert caught.value.name == "glass"


def test_what_a_module_itself_lacks_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: str) -> None:
        raise ModuleNotFoundError(name="cloudpickle")

    monkeypatch.setattr(import_module("horovod._offering"), "import_module", refuse)
    with pytest.raises(ModuleNotFoundError) as caught:
        offer({"worker_runtime.torch": ("rank",)})
    assert caught.value.name == "cloudpickle"
