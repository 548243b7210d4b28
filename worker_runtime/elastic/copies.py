"""Copies of nested objects, whose arrays a framework copies over their earlier copies."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


def copy_nested(value: Any, earlier: Any, kind: type, copy_array: Callable[[Any, Any], Any]) -> Any:
    """Copy arrays, also those in dicts, lists and tuples, by `copy_array`, and other objects by `copy.deepcopy`.

    An array at several places, as an option of several groups of an optimizer, is one array in the copy, too.

    Args:
        value: what to copy.
        earlier: an earlier copy, whose arrays may be overwritten and used again; or anything else.
        kind: the class of arrays.
        copy_array: returns the copy of an array, given it and what is at its place in the earlier copy, or None.
    """
    return _Copier(kind, copy_array).copy(value, earlier)


@dataclass(slots=True)
class _Copier:
    """Copies one object.

    copies: of the arrays so far, by the ids of the originals.
    taken: the ids of the earlier copies that were overwritten.
    """

    kind: type
    copy_array: Callable[[Any, Any], Any]
    copies: dict[int, Any] = field(default_factory=dict)
    taken: set[int] = field(default_factory=set)

    def copy(self, value: Any, earlier: Any) -> Any:
        """See `copy_nested`."""
        if isinstance(value, self.kind):
            if id(value) not in self.copies:
                self.copies[id(value)] = self.copy_array(value, None if id(earlier) in self.taken else earlier)
                self.taken.add(id(earlier))
            return self.copies[id(value)]
        if isinstance(value, dict):
            copied = copy.copy(value)  # keeps the attributes of a module's state_dict
            known = earlier
            if not isinstance(earlier, dict):
                known = {}
            for key, item in value.items():
                copied[key] = self.copy(item, known.get(key))
            return copied

        if type(value) in (list, tuple):
            if type(earlier) is type(value):
                items = list(earlier)
            else:
                items = []
            items += [None] * (len(value) - len(items))
            return type(value)(self.copy(item, known) for item, known in zip(value, items, strict=False))
        return copy.deepcopy(value)
