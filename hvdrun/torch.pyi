from worker_runtime.api.basics import *
from worker_runtime.api.names import *
from worker_runtime.torch import *
from worker_runtime.torch.ops import *
