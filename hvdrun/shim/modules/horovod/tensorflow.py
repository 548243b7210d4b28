"""Not served; the import says what is."""

from horovod._unserved import UnservedError

raise UnservedError(__name__)
