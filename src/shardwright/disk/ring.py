"""The shared-memory ring into which a camera on this machine writes its frames: a sealed memfd, mapped here
and given to one client.

A ring is never reused for another client: the earlier one may still write to it or read it. The next session
of the same connection reuses the last one's ring, since fresh memory costs more than all later use of it. A
ring can neither shrink nor grow, so the peer cannot make our reads fault. Its pages are allocated before it
is used, so that full memory is an error here and not a signal later.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import weakref
from functools import partial
from typing import TYPE_CHECKING

from shardwright.model.errors import BudgetError, StorageError

from .files import populate, storage_errors
from .shared_mapping import SharedMapping

if TYPE_CHECKING:
    from collections.abc import Callable

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class Ring:
    """A ring in shared memory. ``descriptor`` goes to the client; ``address`` is that of slot 0 in this
    process's mapping."""

    def __init__(self, ring_bytes: int, keep: Callable[[Ring], bool] = lambda ring: False) -> None:
        """Takes as long as the kernel needs to provide the memory; may be called from any thread. ``keep`` is
        called when the ring is closed; it returns True if it takes the ring over."""
        self.ring_bytes = ring_bytes
        self._keep = keep
        self.descriptor = os.memfd_create("shardwright-ring", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        mapping = None
        try:
            os.ftruncate(self.descriptor, ring_bytes)
            _allocate(self.descriptor, ring_bytes)
            mapping = self._mapping = _mapping_of(self.descriptor, ring_bytes)
            self.address = mapping.address
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, SEALS)
        except BaseException:
            if mapping is not None:
                mapping.close()
            os.close(self.descriptor)
            raise

    def close(self) -> None:
        """Frees the memory, unless ``keep`` takes the ring over. Only when no worker reads from it any more;
        the client's own mapping stays valid."""
        if not self._keep(self):
            self.free()

    def free(self) -> None:
        self._mapping.close()
        os.close(self.descriptor)


class SpareRing:
    """Keeps at most one ring of an ended session, for the next session of the same ``peer`` (compared by
    identity). Thread-safe.

    Any other request frees it first, so that rings never take more memory than was admitted for sessions.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spare: tuple[object, Ring] | None = None
        self._gone: weakref.WeakSet[object] = weakref.WeakSet()  # peers whose rings are not kept any more

    def take(self, peer: object, ring_bytes: int) -> Ring:
        """Returns the peer's last ring if it has this size, else a fresh one. Raises ``BudgetError``,
        ``StorageError``."""
        with self._lock:
            spare, self._spare = self._spare, None
        if spare is not None:
            if spare[0] is peer and spare[1].ring_bytes == ring_bytes:
                return spare[1]
            spare[1].free()
        return Ring(ring_bytes, partial(self._keep_for, peer))

    def _keep_for(self, peer: object, ring: Ring) -> bool:
        with self._lock:
            if peer in self._gone:
                return False
            spare, self._spare = self._spare, (peer, ring)
        if spare is not None:
            spare[1].free()
        return True

    def release(self, peer: object | None = None) -> None:
        """Frees the kept ring. ``peer``: only its ring, now and whenever one of its sessions ends."""
        with self._lock:
            if peer is not None:
                self._gone.add(peer)
            spare = (
                self._spare if peer is None or (self._spare is not None and self._spare[0] is peer) else None
            )
            if spare is not None:
                self._spare = None
        if spare is not None:
            spare[1].free()


def _allocate(descriptor: int, ring_bytes: int) -> None:
    try:
        os.posix_fallocate(descriptor, 0, ring_bytes)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.ENOMEM):
            raise BudgetError(
                "no memory for the frame ring", expected=f"{ring_bytes} bytes", got=error.strerror
            ) from None
        raise StorageError(
            "cannot allocate the frame ring", expected=f"{ring_bytes} bytes", got=error.strerror
        ) from None


def _mapping_of(descriptor: int, ring_bytes: int) -> SharedMapping:
    """Maps the ring and fills the page table now rather than at each frame's first touch. A kernel that
    cannot do that is only slower in the first lap."""
    with storage_errors("map", "the frame ring"):
        mapping = SharedMapping(descriptor, ring_bytes)
    if (code := populate(mapping.address, ring_bytes)) not in (0, errno.EINVAL):
        mapping.close()
        raise StorageError(
            "cannot populate the frame ring", expected=f"{ring_bytes} bytes", got=os.strerror(code)
        )
    mapping.use_large_pages()
    return mapping
