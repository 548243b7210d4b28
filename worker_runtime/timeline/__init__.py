"""The timeline of a job: what rank 0 saw of each operation, as events of Chrome's trace format in a file.

The other packages hand events to a `Recorder`, and know nothing of files. A thread of the recorder is the one writer.
"""
