"""What a key takes of an array is what NumPy takes, and no more is read than it needs."""

from __future__ import annotations

import numpy as np
import pytest

from shardwright.read.selection import select

SHAPE, CHUNKS = (9, 7, 10), (2, 3, 4)
VALUES = np.arange(np.prod(SHAPE)).reshape(SHAPE)
MASK = VALUES % 7 == 3


def block_of(key, values=VALUES, chunks=CHUNKS):
    """What the boxes of a selection hold, put together; and the chunks along the first axis that they
    touch."""
    selection = select(key, values.shape, chunks)
    block, touched = np.full(selection.block, -1), set()
    for runs in selection.boxes():
        box = values[tuple(slice(run.low, run.high) for run in runs)]
        for axis, run in enumerate(runs):
            if run.within is not None:
                box = np.take(box, np.arange(box.shape[axis])[run.within], axis)
        block[tuple(run.at for run in runs)] = box
        if runs:
            touched |= set(range(runs[0].low // chunks[0], (runs[0].high - 1) // chunks[0] + 1))
    return selection, block, touched


KEYS = [
    np.s_[...],
    np.s_[3],
    np.s_[-1],
    np.s_[np.int16(4), ..., -2],
    np.s_[2:5, 1:, :-3],
    np.s_[::3],
    np.s_[::-1, ::-2],
    np.s_[8:1:-3, 5],
    np.s_[5:5],
    np.s_[20:],
    np.s_[:, None, 2, ..., None],
    np.s_[[0, 8, 8, 3]],
    np.s_[np.array([-1, 2]), :, 1:3],
    np.s_[:, [1, 5], 2:],
    np.s_[[0, 7], [1, 2], [3, 9]],
    np.s_[[[0], [7]], 2, [3, 9]],
    np.s_[3, :, [1, 2]],
    np.s_[[], 1],
    MASK,
    np.s_[MASK[:, 0, 0]],
    np.s_[MASK[:, :, 0], 3],
    np.s_[2, MASK[2]],
    (),
]


@pytest.mark.parametrize("key", KEYS, ids=lambda key: str(key).replace("\n", "")[:40])
def test_a_key_takes_what_numpy_takes(key):
    selection, block, _ = block_of(key)
    np.testing.assert_array_equal(block[selection.key], VALUES[key])
    assert selection.shape == VALUES[key].shape
    if selection.is_whole:
        np.testing.assert_array_equal(block, VALUES[key])


def test_random_keys_take_what_numpy_takes():
    rng = np.random.default_rng(5)
    for _ in range(300):
        key = []
        for size in SHAPE:
            a, b = rng.integers(-size - 2, size + 3, 2).tolist()
            step = int(rng.choice([-4, -1, 1, 1, 2, 5]))
            kinds = [
                slice(a, b, step),
                int(rng.integers(-size, size)),
                rng.integers(-size, size, 4),
                slice(None),
            ]
            key.append(kinds[rng.choice(4)])
        key = tuple(key[: rng.integers(1, 4)])
        selection, block, _ = block_of(key)
        np.testing.assert_array_equal(block[selection.key], VALUES[key], err_msg=str(key))


def test_an_array_without_axes():
    value = np.array(7)
    for key in ((), ..., None):
        selection, block, _ = block_of(key, value, ())
        np.testing.assert_array_equal(block[selection.key], value[key])


@pytest.mark.parametrize(
    ("key", "touched"),
    [(np.s_[::4], {0, 2, 4}), (np.s_[[0, 8]], {0, 4}), (np.s_[[1, 2]], {0, 1}), (np.s_[4:6], {2})],
    ids=str,
)
def test_chunks_that_are_not_needed_are_not_read(key, touched):
    assert block_of(key)[2] == touched


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (np.s_[9], "index 9 is out of bounds for axis 0 with size 9"),
        (np.s_[:, -8], "index -8 is out of bounds for axis 1 with size 7"),
        (np.s_[:, :, [0, 10]], "index 10 is out of bounds for axis 2 with size 10"),
        (np.s_[0, 0, 0, 0], "too many indices"),
        (np.s_[..., ...], "single ellipsis"),
        (np.s_[1.5], "only integers, slices"),
        (np.s_["t"], "only integers, slices"),
        (np.s_[[1.5]], "must be of integer"),
        (np.s_[True], "selects nothing here"),
        (MASK[:4], "a mask has 4 elements along axis 0, the array 9"),
    ],
    ids=str,
)
def test_a_key_that_cannot_be_says_why(key, message):
    with pytest.raises(IndexError, match=message):
        select(key, SHAPE, CHUNKS)


def test_points_far_apart_do_not_fill_the_memory():
    points = np.arange(0, 100_000, 10)
    with pytest.raises(IndexError, match="10000 points would need a block of 100000000 elements"):
        select((points, points), (100_000, 100_000), (64, 64))
    assert select((points, 5), (100_000, 100_000), (64, 64)).shape == (10_000,)
