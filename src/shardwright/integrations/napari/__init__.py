"""The plugin for napari (extra ``napari``): opens finished and running stores, and lets the layers of a
running one grow.

    napari.yaml   the manifest, by which napari finds the reader
    reader        the door: paths in, layers out; the window of ``shardwright view``
    layers        the images of a store as layers
    stitched      the wells of a plate as one picture
    growing       keeps the layers of a running store up to date
"""
