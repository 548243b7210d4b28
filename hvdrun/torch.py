"""What a script imports: `import hvdrun.torch as hvd` is `import worker_runtime.torch as hvd`."""

from hvdrun.shim.runtime_names import become_runtime

become_runtime(__name__)
