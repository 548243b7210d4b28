"""The small things that programs take from `horovod.common.util`."""

import contextlib
import os
from importlib import import_module
from types import ModuleType, SimpleNamespace

import pytest

torch = pytest.importorskip("torch")


@pytest.fixture
def util() -> ModuleType:
    return import_module("horovod.common.util")


@pytest.mark.parametrize("name", ["gloo_built", "mpi_built", "nccl_built", "ddl_built", "ccl_built"])
def test_the_built_features_are_those_of_the_runtime(util: ModuleType, name: str) -> None:
    runtime = import_module("worker_runtime.api.basics")
    built = getattr(util, name)(verbose=True)
    assert built is bool(getattr(runtime, name)())
    # The others depend on the torch that is installed.
    assert built is {"gloo_built": True, "ddl_built": False}.get(name, built)


def test_torch_and_mxnet_are_the_extensions_that_there_are(util: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    assert util.extension_available("torch")
    assert not util.extension_available("tensorflow", verbose=True)
    util.check_extension("horovod.torch", "HOROVOD_WITH_PYTORCH", "/somewhere/__init__.py", "mpi_lib_v2")
    monkeypatch.setattr(util, "find_spec", lambda name: name)
    util.check_extension("horovod.mxnet", "HOROVOD_WITH_MXNET", "/somewhere/__init__.py", "mpi_lib")
    monkeypatch.setattr(util, "find_spec", lambda _: None)
    for name in ("horovod.mxnet", "horovod.tensorflow"):
        with pytest.raises(ImportError, match=rf"^{name} is not available: hvdrun serves torch and mxnet") as caught:
            util.check_extension(name, "HOROVOD_WITH_IT", "/somewhere/__init__.py", "mpi_lib")
        assert caught.value.name == name


def test_a_gpu_is_found_where_torch_finds_one(util: ModuleType) -> None:
    assert util.gpu_available("torch") is torch.cuda.is_available()
    assert util.gpu_available("tensorflow") is False
    assert util.gpu_available("mxnet") is False


def test_variables_are_set_for_a_while(util: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIRST", "1")
    monkeypatch.setenv("SECOND", "2")
    monkeypatch.delenv("THIRD", raising=False)
    with contextlib.suppress(KeyError), util.env(FIRST="one", SECOND=None, THIRD="three"):
        assert [os.environ.get(name) for name in ("FIRST", "SECOND", "THIRD")] == ["one", None, "three"]
        raise KeyError
    assert [os.environ.get(name) for name in ("FIRST", "SECOND", "THIRD")] == ["1", "2", None]


@pytest.mark.parametrize(
    ("function", "arguments", "value"),
    [
        ("split_list", ([], 2), [[], []]),
        ("split_list", ([1, 2, 3, 4], 2), [[1, 2], [3, 4]]),
        ("split_list", ([1, 2, 3, 4, 5], 3), [[1, 2], [3, 4], [5]]),
        ("split_list", ([1], 2), [[1], []]),
        *(("num_rank_is_power_2", (number,), number in {1, 2, 4, 8, 16}) for number in range(-2, 18)),
        ("is_iterable", ([],), True),
        ("is_iterable", ("a",), True),
        ("is_iterable", (iter(()),), True),
        ("is_iterable", (1,), False),
        ("is_iterable", (None,), False),
        ("is_version_greater_equal_than", ("2.1.0", "2.1.0"), True),
        ("is_version_greater_equal_than", ("2.10.0", "2.9.1"), True),
        ("is_version_greater_equal_than", ("2.1.0+cu118", "2.1.0"), True),
        ("is_version_greater_equal_than", ("2.1", "2.1.0"), True),
        ("is_version_greater_equal_than", ("1.13.1", "2.0.0"), False),
        ("is_version_greater_equal_than", ("2.0.0", "2.0.1"), False),
    ],
)
def test_a_function_of_values_has_horovods_result(
    util: ModuleType, function: str, arguments: tuple[object, ...], value: object
) -> None:
    assert getattr(util, function)(*arguments) == value


@pytest.mark.parametrize("version", ["", "two", "2", 2, None])
def test_text_that_is_no_version_is_refused(util: ModuleType, version: object) -> None:
    with pytest.raises(ValueError, match="is no version such as"):
        util.is_version_greater_equal_than(version, "1.0.0")


def test_the_arguments_average_and_op_are_combined_into_one_op(util: ModuleType) -> None:
    choose = util.get_average_backwards_compatibility_fun(SimpleNamespace(Average=0, Sum=1))
    assert choose(op=None, average=None) == 0
    assert choose(op=4, average=None) == 4
    assert choose(op=0, average=None) == 0
    with pytest.warns(DeprecationWarning, match="average"):
        assert choose(op=None, average=True) == 0
    with pytest.warns(DeprecationWarning, match="average"):
        assert choose(op=None, average=False) == 1
    with pytest.raises(ValueError, match=r"^The op parameter supersedes average"):
        choose(op=1, average=False)


def test_a_cached_function_runs_once_for_an_argument(util: ModuleType) -> None:
    calls: list[int] = []

    def double(number: int) -> int:
        calls.append(number)
        return 2 * number

    cached = util._cache(double)
    assert [cached(1), cached(1), cached(2)] == [2, 2, 4]
    assert calls == [1, 2]
