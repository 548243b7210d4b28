"""Other programs on this machine: start, watch and end them, with all their descendants.

Launcher and agent both use it.
"""
