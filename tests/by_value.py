"""Pickles functions of tests by value, as the launcher does."""

from io import BytesIO

from hvdrun.cluster.pickling import NamingPickler


def dump(value: object) -> bytes:
    """Pickle the value; the functions in it keep the names of their files."""
    file = BytesIO()
    NamingPickler(file).dump(value)
    return file.getvalue()
