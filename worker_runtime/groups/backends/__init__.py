"""The libraries that move tensors: which is taken for which, what each is trusted with, and how its groups are made.

gloo is always there: it moves CPU tensors, and it meets, tests and replaces the others. CUDA tensors travel through
NCCL where torch has it, in groups that are made when the first of them is released, and otherwise through gloo, which
copies them to the host and back by itself. `hvdrun --backend`, or HVD_BACKEND under another launcher, requests another
backend. A request that the workers' torch cannot meet is refused; nothing is ever replaced silently.

UCC is used only on request. It does what the table in `ucc` allows, and gloo does the rest; each group is tested when
it is formed. UCC cannot be interrupted: a process that has lost a peer in such a group must be restarted.

`python -m worker_runtime.groups.backends NAME` says whether a backend can be used; agents ask before they start
workers.
"""
