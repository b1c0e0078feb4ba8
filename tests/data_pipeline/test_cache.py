"""The cache of arrays, in memory and on disk."""

import pickle

import crash
import numpy as np
import pytest

from keras_sslhsic.data.cache import Cache

ARRAY = np.arange(100, dtype=np.uint8)


def get(cache, key, shape=(None,)):
    return cache.get(key, shape, lambda size: None)


def test_a_full_cache_keeps_what_it_has():
    cache = Cache(limit=25)
    for number in range(4):
        cache.put(str(number), np.full(10, number, np.uint8))
    assert [get(cache, str(number)) is not None for number in range(4)] == [True, True, False, False]
    assert cache.size == 20
    np.testing.assert_array_equal(get(cache, "1"), np.ones(10, np.uint8))


def objects(entry):
    np.save(entry, np.array([None, 1], object), allow_pickle=True)


DAMAGE = {
    "cut off": lambda entry: entry.write_bytes(entry.read_bytes()[:-20]),
    "empty": lambda entry: entry.write_bytes(b""),
    "text": lambda entry: entry.write_text("text"),
    "a pickle": lambda entry: entry.write_bytes(pickle.dumps(ARRAY)),
    "objects": objects,
    "another type": lambda entry: np.save(entry, ARRAY.astype(np.float32)),
    "another shape": lambda entry: np.save(entry, ARRAY[None]),
    "a large header": lambda entry: entry.write_bytes(
        entry.read_bytes().replace(b"(100,)", b"(10**9,)").replace(b"(10**9,)", b"(99999999,)")
    ),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_entries_of_no_use_are_written_again(tmp_path, damage):
    Cache(1000, tmp_path).put("a", ARRAY)
    (entry,) = tmp_path.glob("*/*.npy")
    damage(entry)
    cache = Cache(1000, tmp_path)
    assert get(cache, "a") is None
    assert cache.size == 0
    cache.put("a", ARRAY)
    np.testing.assert_array_equal(get(cache, "a"), ARRAY)
    np.testing.assert_array_equal(get(Cache(1000, tmp_path), "a"), ARRAY)


def test_what_an_entry_takes_is_held_before_it_is_read(tmp_path):
    cache, held = Cache(1000, tmp_path), []
    cache.put("a", ARRAY)
    cache.get("a", (100,), held.append)
    (entry,) = tmp_path.glob("*/*.npy")
    assert held == [entry.stat().st_size]


def test_a_cache_killed_at_any_moment_goes_on(tmp_path):
    def fill():
        cache = Cache(1000, tmp_path)
        for number in range(3):
            if get(cache, str(number)) is None:
                cache.put(str(number), ARRAY + number)

    for point in crash.points(fill, tmp_path):
        fill()
        cache = Cache(1000, tmp_path)
        for number in range(3):
            np.testing.assert_array_equal(get(cache, str(number)), ARRAY + number, err_msg=point)
        assert not crash.leftovers(tmp_path), point
        assert cache.size == sum(entry.stat().st_size for entry in tmp_path.glob("*/*.npy"))
