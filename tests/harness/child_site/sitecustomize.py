"""Python imports this as it starts, in each process that a test starts: hands its zarr.json to
``tests/harness/document_oracle.py`` of the test. Imports next to nothing until that module is there.

On a signal the process says where its threads are: ``tests/harness/evidence.py`` asks so."""

import faulthandler
import os
import sys
from _signal import SIGUSR2

MODULE = "shardwright.array.document"


class Watcher:
    """Finds one module, as the others would, and watches it once it is loaded."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != MODULE:
            return None
        sys.meta_path.remove(Watcher)
        from importlib.util import find_spec

        spec = find_spec(name)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            watch(module)

        spec.loader.exec_module = exec_module
        return spec


def watch(module):
    from importlib.util import module_from_spec, spec_from_file_location

    file = os.path.join(os.path.dirname(os.path.dirname(__file__)), "document_oracle.py")  # noqa: PTH118, PTH120
    spec = spec_from_file_location("document_oracle", file)
    oracle = module_from_spec(spec)
    spec.loader.exec_module(oracle)
    oracle.watch(module)


if "SHARDWRIGHT_TEST_DOCUMENTS" in os.environ:
    faulthandler.register(SIGUSR2, file=2)  # by number: a fork may have another standard error
    sys.meta_path.insert(0, Watcher)
