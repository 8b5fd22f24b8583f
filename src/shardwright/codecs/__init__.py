"""The codecs of inner chunks: zarr.json entries, worst-case sizes, and the native library whose functions the
kernels call."""
