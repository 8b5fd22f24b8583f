"""acquire-zarr, in this process. It appends frames and never syncs itself."""

from __future__ import annotations

from pathlib import Path

import acquire_zarr as aqz

from benchmarks.peers import Contender, check_last_shard, tree_bytes

COMPRESSION = {"lz4": aqz.CompressionCodec.BLOSC_LZ4, "zstd": aqz.CompressionCodec.BLOSC_ZSTD}
SHUFFLE = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2}


class AcquireZarr(Contender):
    array_path = "0"

    def add_levels(self, array: aqz.ArraySettings) -> None:
        """None."""

    def write(self, path: Path) -> int:
        case = self.case
        kinds = (aqz.DimensionType.TIME, aqz.DimensionType.SPACE, aqz.DimensionType.SPACE)
        dimensions = [
            aqz.Dimension(name=n, kind=kind, array_size_px=size, chunk_size_px=c, shard_size_chunks=s // c)
            for n, kind, size, c, s in zip(
                "tyx", kinds, (0, *case.shape), case.chunk, case.shard, strict=True
            )
        ]
        array = aqz.ArraySettings(output_key="0", dimensions=dimensions, data_type=aqz.DataType.UINT16)
        if case.compressed:
            array.compression = aqz.CompressionSettings(
                compressor=aqz.Compressor.BLOSC1,
                codec=COMPRESSION[case.cname],
                level=case.clevel,
                shuffle=SHUFFLE[case.shuffle],
            )
        self.add_levels(array)
        settings = aqz.StreamSettings(store_path=str(path), max_threads=case.threads, overwrite=False)
        settings.arrays = [array]
        stream = aqz.ZarrStream(settings)
        for i in range(case.frames):
            stream.append(self.frame(i), "0")
        stream.close()
        return tree_bytes(path)

    def verify(self, path: Path) -> None:
        check_last_shard(path / self.array_path, self)


class AcquireZarrLevels(AcquireZarr):
    """With its own ``multiscale``: levels of means, until one is a chunk."""

    array_path = "0/0"

    def add_levels(self, array: aqz.ArraySettings) -> None:
        array.downsampling_method = aqz.DownsamplingMethod.MEAN
