"""Proof by faults: what a writer claimed still holds after the disk was full, failing or stalled, and after
cameras did what cameras do.

test_full_disk    P4: a real small filesystem that fills up at any storage call; policies fail, block, spill;
                  recovery; the daemon
test_io_errors    P5: EIO at any storage call or system call, a block device that fails for a while
test_stalls       P6: a block device that stops answering; memory, back-pressure, heartbeats; policies block,
                  drop, fail
test_cameras      P9: slow, bursting, duplicating, reordering, dying and returning cameras, gaps

faulty_writer (own process) runs a ``Scenario``        judge holds the claims against the disk, by zarr-python
and claims
"""
