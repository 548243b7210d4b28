"""Who is in a job, and which number each has."""

from pkgutil import extend_path

# A script may have a folder of this name without an __init__.py: its modules are found as well, behind these.
__path__ = extend_path(__path__, __name__)
