"""Copies of nested objects, whose arrays a framework copies over their earlier copies."""

import copy
from collections.abc import Callable
from typing import Any


def copy_nested(value: Any, earlier: Any, kind: type, copy_array: Callable[[Any, Any], Any]) -> Any:
    """Copy arrays, also those in dicts, lists and tuples, by `copy_array`, and other objects by `copy.deepcopy`.

    Args:
        value: what to copy.
        earlier: an earlier copy, whose arrays may be overwritten and used again; or anything else.
        kind: the class of arrays.
        copy_array: returns the copy of an array, given it and what is at its place in the earlier copy, or None.
    """
    if isinstance(value, kind):
        return copy_array(value, earlier)
    if isinstance(value, dict):
        copied = copy.copy(value)  # keeps the attributes of a module's state_dict
        known = earlier
        if not isinstance(earlier, dict):
            known = {}
        for key, item in value.items():
            copied[key] = copy_nested(item, known.get(key), kind, copy_array)
        return copied

    if type(value) in (list, tuple):
        if type(earlier) is type(value):
            items = list(earlier)
        else:
            items = []
        items += [None] * (len(value) - len(items))
        pairs = zip(value, items, strict=False)
        return type(value)(copy_nested(item, known, kind, copy_array) for item, known in pairs)
    return copy.deepcopy(value)
