"""The libraries that move tensors: which is taken for which, what each is trusted with, and how its groups are made.

gloo is always there: it moves CPU tensors, and it meets, tests and replaces the others. CUDA tensors travel through
NCCL where torch has it, in groups that are made when the first of them is released, and otherwise through gloo, which
copies them to the host and back by itself. A wish (`hvdrun --backend`, or HVD_BACKEND under another launcher) changes
that, and is refused where the workers' torch cannot fulfil it; nothing is ever replaced silently.

UCC is taken only on such a wish. It is let do what the table in `gated` says, and gloo does the rest; each
group is tested when it is formed. Neither can be interrupted: a process that has lost a peer in one must be restarted.

`python -m worker_runtime.groups.backends NAME` says whether a wish can be fulfilled; agents ask before they start
workers.
"""
