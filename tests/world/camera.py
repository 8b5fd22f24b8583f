"""The camera's side: one acquisition's client through all its lives. It sends frames as the story says,
resends what was not released, and ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shardwright.array.grid import image_of
from shardwright.model.errors import ClosedError, StorageError
from shardwright.wire.descriptor import DESCRIPTOR, FRAME_DROPPED, FRAME_NOT_HELD

from .oracle import Oracle, ViolationError, metadata_of
from .story import BATCH, plan_of

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from .process import Process
    from .story import Life, Story

MOST_REFUSALS = 2  # of an image by a disk, before it ends


class Camera:
    """``next``: the sequence that it sends next. A frame that was released is not held any more."""

    def __init__(
        self, story: Story, oracle: Oracle, rng: random.Random, trace: Callable[[str], None] | None
    ) -> None:
        self.next = 0
        self.finished = False
        self._released: set[int] = set()
        self._dropped: set[int] = set()  # their pixels are not held
        self._oracle, self._rng, self._trace = oracle, rng, trace
        self._drops = story.settings.overload == "drop"
        self._descriptors = np.zeros(len(story.frames), DESCRIPTOR)
        self._descriptors["sequence"] = self._descriptors["frame_id"] = np.arange(len(story.frames))
        self._descriptors["position"] = [frame.position for frame in story.frames]
        for name, values in metadata_of(self._descriptors["sequence"].astype(np.int64)).items():
            self._descriptors[name] = values
        self._frames = len(story.frames)
        self._places = story.shape.colours  # of a frame, which come together or not at all
        self._again: list[int] = []
        plan = plan_of(story.shape)
        self._images = plan.spec.added
        self._declared = len(plan.declared.names)
        self._image = image_of(self._descriptors["position"].astype(np.int64)).tolist()
        self._added = 0  # of these, that are there, as it was told

    def begin(self, process: Process, life: Life) -> None:
        """Another process has the acquisition now."""
        self._process, self._life = process, life
        self.finished = False
        self._pause_until_ns = 0
        self._pauses = dict(life.pauses_ms)
        self._flushes = set(life.flushes)
        self._new_client = life.new_client_at
        self._goal: int | None = None  # of a flush that it waits for
        self._stuck = False
        self._asked: int | None = None  # an image that it waits for
        self._refusals = 0
        if (there := process.acquisition.spec.added)[: self._added] != self._images[: self._added]:
            raise ViolationError(f"{self._added} images were added, and {len(there)} are there")
        if len(there) > self._added and self._rng.random() < 0.5:
            self._added = len(there)  # else it asks again, as who has heard of no answer
        accounts = process.core.accounts
        self._again = []
        if life.client == "resends":
            self.next = max(self.next, accounts.seen.stop)
            self._again = [
                n for first, last in accounts.seen.missing(self.next) for n in range(first, last + 1)
            ]
        else:
            process.settle_missing()
            self.next = accounts.seen.stop

    def release(self, sequences: list[int]) -> None:
        self._released.update(sequences)

    def can_act(self, now_ns: int) -> bool:
        """Whether it has something to do now: it does not wait for time, a flush or credit."""
        if (
            self._asked is not None
            or self.finished
            or self._goal is not None
            or now_ns < self._pause_until_ns
        ):
            return False
        slots = 1 if self._again else self._places
        enough = self._process.ring.free >= slots
        return self._next_needs_no_slot() or enough or (self._drops and not self._again)

    def _next_needs_no_slot(self) -> bool:
        if self._again:
            return self._again[0] in self._released | self._dropped
        n = self.next
        return n >= self._life.frames or n in self._flushes or n in self._pauses or n == self._new_client

    @property
    def waits_for_time(self) -> bool:
        return self._pause_until_ns > 0

    def act(self, now_ns: int) -> None:
        process, life = self._process, self._life
        self._now_ns, self._pause_until_ns = now_ns, 0
        if self._again:
            self._send_again()
            return
        n = self.next
        if life.client == "nobody" or n >= life.frames or self._refusals > MOST_REFUSALS:
            self._say("finish")
            process.finish()
            self.finished = True
        elif n in self._pauses:
            self._pause_until_ns = now_ns + 1_000_000 * self._pauses.pop(n)
        elif n in self._flushes:
            self._flushes.discard(n)
            self._say("flush")
            process.flush()
            for level in ("stored", "visible") if life.levels else ():
                process.flush(level)
            if life.client == "writer":
                self._goal = n
        elif n == self._new_client:
            self._new_client = None
            self._say("a new client")
            process.new_client()
            process.settle_missing()
        else:
            stops = [
                s
                for s in (
                    *self._flushes,
                    *self._pauses,
                    life.frames,
                    *(() if self._new_client is None else (self._new_client,)),
                )
                if s > n
            ]
            if self._image[n] >= self._declared + self._added:
                self._add_image()
                return
            stops += [
                m for m in range(n, len(self._image)) if self._image[m] >= self._declared + self._added
            ][:1]
            places = self._places
            count = min(self._rng.randint(1, BATCH) * places, min(stops) - n)
            count = min(count, process.ring.free // places * places)
            self._send(list(range(n, n + (count or places))), flag=0 if count else FRAME_DROPPED)
            self.next = max(self.next, n + (count or places))

    def _add_image(self) -> None:
        """The next one, before a frame of it, or of one behind it, comes."""
        image = self._images[self._added]
        self._say(f"adds {image.name}")
        try:
            self._asked = self._process.add_image(image)
        except ClosedError:
            self._refusals = MOST_REFUSALS + 1

    def _hear_of_images(self) -> None:
        for request, why in self._process.answers():
            if request != self._asked:
                continue
            self._asked = None
            self._say(f"added: {why}")
            if why is None:
                self._added += 1
                spec = self._process.acquisition.spec
                if spec.added[: self._added] != self._images[: self._added]:
                    raise ViolationError(f"an image is not there that was added: {spec.names}")
            elif not (self._oracle.faulty and why.is_a(StorageError)):
                raise ViolationError(f"an image was refused, though the disk did nothing: {why}")
            else:
                self._refusals += 1

    def _send_again(self) -> None:
        """What is held still; of the rest only that it is not."""
        n = self._again[0]
        if n in self._released:
            self._again.pop(0)
            self._send([n], flag=FRAME_NOT_HELD)
        elif n in self._dropped:
            self._again.pop(0)
            self._send([n], flag=FRAME_DROPPED)
        elif self._process.ring.free:
            self._again.pop(0)
            self._send([n])

    def _send(self, sequences: list[int], flag: int = 0) -> None:
        process, oracle = self._process, self._oracle
        descriptors = self._descriptors[sequences]
        descriptors["flags"] = flag
        addresses = np.zeros(len(sequences), np.int64)
        if flag:
            oracle.told.update(sequences)
            if flag == FRAME_DROPPED:
                self._dropped.update(sequences)
            else:
                descriptors["position"] = -1
        else:
            addresses[:] = [process.ring.put(n, oracle.token(n)) for n in sequences]
            oracle.told.difference_update(sequences)
            self._released.difference_update(sequences)
            self._dropped.difference_update(sequences)
        oracle.sent.update(sequences)
        oracle.sent_now.update(sequences)
        self._say(
            f"frames {sequences} at {descriptors['position'].tolist()}" + (f", flags {flag}" if flag else "")
        )
        oracle.arrive(sequences, self._now_ns, process.core.arrivals.client_epoch)
        process.submit(descriptors, addresses)

    def look(self, *, quiet: bool) -> None:
        """Whether the flush that it waits for has come to an end, or an image is there. ``quiet``: nothing
        more will happen by itself."""
        self._hear_of_images()
        core = self._process.core
        waits = core.notifications.flushes and core.end.why is None and not core.full_disk.is_waited_for
        if quiet and waits and not self._oracle.faulty:
            raise ViolationError("a flush to a level has no answer, and nothing more will happen by itself")
        if self._goal is None:
            return
        if core.accounts.durable.value >= self._goal:
            if self._stuck and not self._oracle.faulty:
                raise ViolationError(
                    f"a flush up to {self._goal} was told that it is stuck, and then everything was durable"
                )
            self._goal, self._stuck = None, False
        elif core.end.why is not None or (self._stuck and quiet):
            self._goal, self._stuck = None, False
        elif core.flush_is_stuck:
            self._stuck = True

    def _say(self, what: str) -> None:
        if self._trace is not None:
            self._trace(f"camera: {what}")
