"""Micro-Manager's acquisition engine as a camera of shardwright: each frame it emits is appended at its own
index."""

from pymmcore_plus.mda import mda_listeners_connected


class FramesToStream:
    """Listens in the engine's own thread, so that back-pressure reaches it. ``errors`` holds what append
    raised, ``frames`` what was emitted."""

    def __init__(self, stream):
        self.stream = stream
        self.axes = [dimension.name for dimension in stream.spec.dimensions[:-2]]
        self.frames = {}
        self.errors = []

    def frameReady(self, image, event, meta):  # the engine's name for it
        index = tuple(event.index[axis] for axis in self.axes)
        try:
            metadata = {"exposure_time": meta["exposure_ms"] / 1e3, "delta_t": meta["runner_time_ms"] / 1e3}
            self.stream.append(image, index=index, frame_id=len(self.frames), metadata=metadata)
        except Exception as error:
            self.errors.append(error)
        self.frames[index] = image.copy()


def acquire(core, sequence, stream):
    """Run the sequence into the stream, to its end. Returns the frames by index, as the engine gave them."""
    listener = FramesToStream(stream)
    with mda_listeners_connected(listener, mda_events=core.mda.events, asynchronous=False):
        core.mda.run(sequence)
    assert not listener.errors
    return listener.frames
