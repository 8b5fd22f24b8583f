"""Kernels: numba functions without the GIL, on arrays and scalars only. Each has a plain NumPy twin in the
tests."""

from .cache import choose_cache_folder

# Before any kernel is declared: numba reads the folder when it decorates.
CACHE_FOLDER = choose_cache_folder()
