"""Which gradients of an optimizer travel together because its user wants it so."""

from collections.abc import Sequence

import torch


def read_groups(
    parameters: Sequence[tuple[str, torch.Tensor]], groups: int | Sequence[Sequence[torch.Tensor]] | None
) -> dict[torch.Tensor, int]:
    """The group of each parameter that has one.

    Args:
        parameters: of the optimizer, in an order that all ranks have alike.
        groups: how many, or which; of those that are listed, parameters that require no gradient are left out.

    Raises:
        ValueError: the number is negative, something else than parameters is listed, or one stands in two groups.
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
    chosen: dict[torch.Tensor, int] = {}
    for number, group in enumerate(groups):
        for parameter in group:
            if not isinstance(parameter, torch.Tensor):
                raise ValueError(f"groups must consist of torch.Tensor; got {type(parameter).__name__}")  # noqa: TRY004 - Horovod's error
            if parameter in chosen:
                raise ValueError("A parameter can only appear once in groups")
            chosen[parameter] = number
    return {parameter: number for parameter, number in chosen.items() if parameter.requires_grad}
