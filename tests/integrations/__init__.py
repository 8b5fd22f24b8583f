"""The doors for other projects, and these projects' own suites over them: ``./tools/prove integrations``."""
