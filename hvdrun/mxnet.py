"""What a script imports: `import hvdrun.mxnet as hvd` is `import worker_runtime.mxnet as hvd`."""

from hvdrun.shim.runtime_names import become_runtime

become_runtime(__name__)
