"""The in-process API: create, resume, append, receipt."""
