"""The state, in status, page and metrics, of an acquisition that waits for room on a full disk, whatever its
client does; and of a daemon that has such an acquisition."""

DISK_FULL = "disk_full"
