"""The codecs of inner chunks: worst-case sizes, and the native library whose functions the kernels call."""
