"""Tensors of the runtime's own say what they are: a program's defaults are meant for its own.

Under `torch.set_default_device("cuda")`, or in `with torch.device(...)`, a tensor that does not say where it is lies
there, and a socket, or gloo, cannot use it; under `torch.set_default_dtype` one that does not say its dtype travels as
another than its receiver expects.
"""

import ast

import pytest

from tests.house.sources import ROOT, find_python_files

devices = pytest.importorskip("torch.utils._device")
# Which functions make a tensor where the default device is: those on whose calls torch puts it.
FACTORIES = frozenset(function.__name__ for function in devices._device_constructors())
# The functions whose result has the dtype of its elements.
_OF_VALUES = frozenset({"sparse_coo_tensor"})


def find_unsaid(source: str) -> list[str]:
    """The calls that make a tensor without saying on which device, or of which dtype: "3: torch.zeros"."""
    unsaid = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr=name)) if name in FACTORIES:
                said = {keyword.arg for keyword in node.keywords}
                if not {"device", *(() if name in _OF_VALUES else ("dtype",))} <= said:
                    unsaid.append(f"{node.lineno}: torch.{name}")
    return unsaid


def test_all_tensors_that_the_runtime_makes_say_their_device_and_dtype() -> None:
    sources = {str(path): (ROOT / path).read_text(encoding="utf-8") for path in find_python_files("worker_runtime")}
    assert sum("device=" in source for source in sources.values()) > 1, "the search found too little to mean anything"
    assert {path: unsaid for path, source in sources.items() if (unsaid := find_unsaid(source))} == {}


@pytest.mark.parametrize(
    "call",
    [
        "torch.zeros(3)",
        "torch.zeros(3, dtype=torch.int8)",
        "torch.zeros(3, device='cpu')",
        "torch.tensor([1], device='cpu')",
        "torch.sparse_coo_tensor(i, v)",
        "f(torch.empty(n, dtype=d))",
    ],
)
def test_a_tensor_that_leaves_something_open_is_caught(call: str) -> None:
    assert find_unsaid(f"import torch\n\n\ndef f():\n    return {call}") != []


@pytest.mark.parametrize(
    "call",
    [
        "torch.zeros(3, dtype=torch.int8, device='cpu')",
        "torch.from_numpy(a)",
        "torch.frombuffer(a, dtype=torch.uint8)",
        "torch.empty_like(x)",
        "x.new_zeros(3)",
        "torch.sparse_coo_tensor(i, v, device=v.device)",
    ],
)
def test_a_tensor_with_another_s_dtype_and_device_or_its_own_is_accepted(call: str) -> None:
    assert find_unsaid(call) == []
