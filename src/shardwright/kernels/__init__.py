"""Kernels: numba functions without the GIL, on arrays and scalars only. ``reference.py`` holds the plain
NumPy twin of each."""

from .cache import choose_cache_folder

# Before any kernel is declared: numba reads the folder when it decorates.
CACHE_FOLDER = choose_cache_folder()
