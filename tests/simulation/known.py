"""Known defects of the writer that the simulation has found, each left out by a constant until it is mended: then the constant goes, with what it
leaves out. Set to False a constant lets the simulation meet the defect."""

# Files that were made for a group which was discarded meanwhile are taken for those of the same group that is prepared again: slabs are
# encoded into files that are about to be deleted (``Groups.note_prepared``).
FILES_TO_DISCARD_ARE_NOT_TOLD = True

# The keeper looks once, if at all, whether another writer has taken over, and then makes, renames or deletes several files by their names. A writer
# that is stopped in between, and wakes up later, does that to files of its successor (``GroupFiles.create``, ``discard``, ``take_names``, and
# ``seal`` of a shard that is all fill).
LOOKS_BEFORE_EACH_NAME = True

# A shard that is all fill is deleted before the journal of its group is synced. A power cut in between may keep the deletion, which tells recovery
# that sealing had begun, and lose the journal's entries: frames that were durable in the staging area are then not looked for (``GroupFiles.seal``).
ALL_FILL_SHARDS_GO_AFTER_THE_JOURNAL = True

# The journal of files that are discarded is deleted, and that not synced before their shards are. A power cut may bring it back alone, with the
# same consequence (``GroupFiles.discard``).
DISCARDED_JOURNALS_GO_FIRST = True

# A flush waits for ever for frames of a slab that is not full, in a group whose files could not be made for another reason than a full disk
# (``Core.flush_is_stuck``).
FLUSHES_END_WITHOUT_FILES = True

# A commit fails for a look at the folder, not for a sync, while the group's seal is asked already; the seal succeeds, and then the group is to be
# rewritten, whose files are gone (``Core._rewrite_if_idle``).
LOOKS_NEVER_FAIL = True

# Of a group that recovery found partly sealed, the keeper begins to rewrite the rest, and meets a defect (``GroupFiles.renamed``).
PARTLY_SEALED_ROWS_ARE_NOT_REWRITTEN = True

# After a sync that failed the kernel may hold what was not written for clean; recovery finds it in the page cache, and its own sync, which says that
# all is well, makes it durable no more (``Finder._take_group``).
RECOVERY_WRITES_AGAIN = True

# Recovery syncs the files that it goes on with, not the folder in which a rewrite that was killed had renamed some of them; a power cut then brings
# the old ones back (``Finder``).
RECOVERY_SYNCS_NAMES = True

# Frames that a rewrite could not read back are told lost, and are found again in the staging area by the next recovery, so that they have two
# statuses (``Finder._read_staging``).
WHAT_IS_TOLD_LOST_STAYS_LOST = True

# Recovery deletes the journal of a group whose block it finds in the frame log, before it has synced that: a power cut in between may take both
# (``Finder.run``).
RECOVERY_SYNCS_THE_LOG_FIRST = True
