"""Which gradients of an optimizer travel together because its user wants it so."""

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

import torch

from worker_runtime.errors import WrongArgumentError


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
