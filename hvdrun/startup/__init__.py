"""What every process of hvdrun does first: check its Python, find its own packages, keep early signals.

These modules import the standard library alone.
"""
