"""Runs ``SHARDWRIGHT_SABOTAGE`` at the start of every Python process, before anything of the program is
imported by anyone else."""

import os
import sys
from importlib.machinery import PathFinder, SourceFileLoader

CHANGES = {}  # by module: (old, new) pieces of its text


def change(module, old, new):
    """Gives a module other text in one place. It is compiled so when it is imported: whoever imports a name
    of it gets the changed one, where a patch of the module would come too late."""
    assert ".kernels" not in module, "compiled kernels are kept on disk, and would be found by later runs"
    CHANGES.setdefault(module, []).append((old, new))


class Loader(SourceFileLoader):
    """Compiles the changed text. It reads and writes no bytecode, which is that of the real text."""

    def get_code(self, fullname):
        text = self.get_data(self.path).decode()
        for old, new in CHANGES[fullname]:
            assert text.count(old) == 1, f"{fullname} has not once: {old}"
            text = text.replace(old, new)
        return self.source_to_code(text, self.path)


class Finder:
    """Finds changed modules, before all other finders."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        spec = PathFinder.find_spec(name, path, target) if name in CHANGES else None
        if spec is not None:
            spec.loader = Loader(name, spec.origin)
        return spec


sys.meta_path.insert(0, Finder)
exec(compile(os.environ.get("SHARDWRIGHT_SABOTAGE", ""), "sabotage", "exec"))
