"""What a user says of an optimizer's parameters: their names, and which gradients travel together."""

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

import torch

from worker_runtime.errors import WrongArgumentError
from worker_runtime.torch.facade import list_parameters

_PAIR = 2


def read_names(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, torch.Tensor]] | None
) -> dict[torch.Tensor, str]:
    """The names that a user has given; none where he has given none.

    Args:
        optimizer: a plain one.
        named_parameters: may name parameters that the optimizer does not have.

    Raises:
        ValueError: they are no pairs, a name or a parameter is there twice, or one of the optimizer has no name.
    """
    if named_parameters is None:
        return {}
    if not isinstance(named_parameters, Iterable):
        raise WrongArgumentError(f"named_parameters is {named_parameters!r}; give model.named_parameters()")
    pairs = list(named_parameters)
    if not all(_is_named(pair) for pair in pairs):
        raise ValueError("named_parameters must be (name, parameter) tuples, as model.named_parameters() gives them")
    names = [name for name, _ in pairs]
    if not pairs:
        return {}
    duplicates = sorted({name for name in names if names.count(name) > 1})
    if duplicates:
        raise ValueError(f"named_parameters has these names more than once: {', '.join(duplicates)}")
    named: dict[torch.Tensor, str] = {}
    for name, parameter in pairs:
        if parameter in named:
            raise ValueError(f"named_parameters has one parameter under two names: {named[parameter]} and {name}")
        named[parameter] = name
    unnamed = [(name, parameter) for name, parameter in list_parameters(optimizer, {}) if parameter not in named]
    if unnamed:
        listed = ", ".join(f"{name} (id {id(parameter)})" for name, parameter in unnamed)
        raise ValueError(f"named_parameters lacks parameters of the optimizer: {listed}")
    return named


def read_groups(
    parameters: Sequence[tuple[str, torch.Tensor]], groups: int | Sequence[Sequence[torch.Tensor]] | None
) -> dict[torch.Tensor, int]:
    """The group of each parameter that has one.

    Args:
        parameters: of the optimizer, in an order that all ranks have alike.
        groups: how many, or which; of those that are listed, parameters that require no gradient are left out.

    Raises:
        ValueError: the number is negative, something else than parameters of the optimizer is listed (frozen ones of
            the model may be), or one stands in two groups.
        TypeError: it is neither a number nor lists.
    """
    trained = [parameter for _, parameter in parameters if parameter.requires_grad]
    if groups is None or (isinstance(groups, int) and groups == 0):
        return {}
    if isinstance(groups, int):
        if groups < 0:
            raise ValueError(f"groups should be a non-negative integer, or lists of parameters; got {groups}")
        return {parameter: index * groups // len(trained) for index, parameter in enumerate(trained)}
    if not isinstance(groups, list | tuple):
        raise TypeError(f"groups should be a non-negative integer, or lists of parameters; got {groups!r}")
    return _read_lists({parameter for _, parameter in parameters}, groups)


def _is_named(pair: object) -> bool:
    return (
        isinstance(pair, tuple)
        and len(pair) == _PAIR
        and isinstance(pair[0], str)
        and isinstance(pair[1], torch.Tensor)
    )


def _read_lists(known: AbstractSet[torch.Tensor], groups: Iterable[object]) -> dict[torch.Tensor, int]:
    chosen: dict[torch.Tensor, int] = {}
    for number, group in enumerate(groups):
        if isinstance(group, torch.Tensor) or not isinstance(group, Iterable):
            raise WrongArgumentError(f"groups should be lists of parameters; one of them is {type(group).__name__}")
        for parameter in group:
            if not isinstance(parameter, torch.Tensor):
                raise ValueError(f"groups must consist of torch.Tensor; got {type(parameter).__name__}")  # noqa: TRY004 - Horovod's error
            if parameter not in known and (parameter.requires_grad or not isinstance(parameter, torch.nn.Parameter)):
                raise ValueError(f"groups[{number}] has a tensor that is no parameter of the optimizer")
            if parameter in chosen:
                raise ValueError("A parameter can only appear once in groups")
            chosen[parameter] = number
    return {parameter: number for parameter, number in chosen.items() if parameter.requires_grad}
