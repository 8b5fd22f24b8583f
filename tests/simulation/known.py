"""Known defects of the writer that the simulation has found, each left out by a constant until it is mended: then the constant goes, with what it
leaves out. Set to False a constant lets the simulation meet the defect."""

# After a sync that failed the kernel may hold what was not written for clean; recovery finds it in the page cache, and its own sync, which says that
# all is well, makes it durable no more (``Finder._take_group``).
RECOVERY_WRITES_AGAIN = True
