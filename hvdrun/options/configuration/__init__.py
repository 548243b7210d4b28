"""Configuration files: YAML or TOML, with the options' long names as keys, and Horovod's sections.

Nothing here is imported, and no YAML library either, unless a file is named.
"""
