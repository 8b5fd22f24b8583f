"""The wire protocol, described in PROTOCOL.md: messages and the session table, without I/O. Portable."""
