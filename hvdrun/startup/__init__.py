"""How programs of hvdrun begin and end as processes.

`requirements`, `early` and `container_init` import the standard library alone, since they run first.
"""
