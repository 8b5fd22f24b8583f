"""Kernels: numba functions without the GIL, on arrays and scalars only. ``reference.py`` holds the plain NumPy twin of each."""
