"""The options of hvdrun: one table, from which the command line, --help, configuration files and the docs are made."""
