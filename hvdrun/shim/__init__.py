"""`import horovod` for this project. The folder `modules/` is on the workers' search paths and has only `horovod`."""
