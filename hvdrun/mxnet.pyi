from worker_runtime.api.basics import *
from worker_runtime.api.names import *
from worker_runtime.mxnet import *
from worker_runtime.mxnet.ops import *
