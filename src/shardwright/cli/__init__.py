"""The command line: one module for each command, each with a function ``command``, registered in app.py."""
