"""Copy bytes into memory of large pages, which a scan reads faster."""

import mmap
from contextlib import suppress

from spass.rag.index.cache import Body


def in_large_pages(body: bytes) -> Body:
    """Return a copy of ``body``, which is not empty, in memory for which Linux is asked to use pages of 2 MiB
    (https://docs.kernel.org/admin-guide/mm/transhuge.html). On other systems, return ``body`` itself."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return body
    copy = mmap.mmap(-1, len(body), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # of a kernel without large pages
        copy.madvise(mmap.MADV_HUGEPAGE)
    copy[:] = body
    return copy
