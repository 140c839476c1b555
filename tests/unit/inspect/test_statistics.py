"""What is said of a tensor is what plain numpy says of it, for every dtype, shape and value."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tuimon.inspect import statistics
from tuimon.inspect.dtypes import DTYPES, SAFETENSORS, SERVING_MAX, values
from tuimon.inspect.statistics import Measured, Raw, measure

LOOKED_UP = [name for name, each in DTYPES.items() if each.is_counted]


def measured(array: np.ndarray, dtype: str) -> Measured:
    raw = np.frombuffer(array.tobytes(), np.uint8)
    place = 0

    def read(size: int) -> Raw:
        nonlocal place
        place += size
        assert place <= len(raw)
        return raw[place - size : place]

    found = measure("w", DTYPES[dtype], list(array.shape), read)
    assert place == len(raw)
    return found


@pytest.mark.parametrize("name", LOOKED_UP)
def test_every_pattern_has_the_value_that_torch_gives_it(name: str) -> None:
    dtype = DTYPES[name]
    kind = getattr(torch, name)
    patterns = torch.arange(1 << dtype.bits).to(torch.uint8 if dtype.bits == 8 else torch.uint16)
    theirs = patterns.view(kind).to(torch.float64).numpy()
    ours = values(dtype)
    if name == "bool":  # torch promises two patterns
        theirs, ours = theirs[:2], ours[:2]
    np.testing.assert_array_equal(ours, theirs)


def test_limits_and_names_are_those_of_torch() -> None:
    for name, largest in SERVING_MAX.items():
        assert largest == torch.finfo(getattr(torch, name)).max
    for name in SAFETENSORS.values():
        assert DTYPES[name].bits < 8 or getattr(torch, name).itemsize * 8 == DTYPES[name].bits


FLOATS = {"float32": np.float32, "float64": np.float64, "float16": np.float16}
SHAPES = st.lists(st.integers(0, 7), max_size=3).map(tuple)


@given(st.data(), st.sampled_from(sorted(FLOATS)), SHAPES, st.integers(1, 60))
@settings(max_examples=150, deadline=None)
def test_any_tensor_is_measured_as_numpy_measures_it(
    data: st.DataObject, name: str, shape: tuple[int, ...], piece: int
) -> None:
    kind = FLOATS[name]
    pool = st.sampled_from([0.0, -0.0, 1.0, -3.5, math.nan, math.inf, -math.inf])
    anything = st.floats(width=np.dtype(kind).itemsize * 8)
    array = data.draw(arrays.arrays(kind, shape, elements=st.one_of(pool, anything)))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(statistics, "PIECE_BYTES", piece)  # so that pieces end anywhere
        found = measured(array, name)
    compare(found, array)


def compare(found: Measured, array: np.ndarray) -> None:
    exact = array.astype(np.float64)
    assert found.nan == np.isnan(exact).sum()
    assert (found.posinf, found.neginf) == ((exact == np.inf).sum(), (exact == -np.inf).sum())
    finite = exact[np.isfinite(exact)]
    if not array.size:
        assert found.zero_frac is found.absmax is found.rms is None
        return
    assert found.zero_frac == pytest.approx((exact == 0).mean())
    if not finite.size:
        assert found.absmax is None and found.rms is None
        return
    assert found.absmax == np.abs(finite).max()
    scale = found.absmax or 1.0
    assert found.rms == pytest.approx(
        scale * np.sqrt(((finite / scale) ** 2).mean()), rel=1e-4, abs=0
    )
    if found.absmax:
        assert found.headroom["float16"] == pytest.approx(65504 / found.absmax)


@given(SHAPES.filter(lambda shape: len(shape) > 1), st.integers(1, 60), st.data())
@settings(max_examples=100, deadline=None)
def test_rows_that_are_constant_are_counted_however_they_are_cut(
    shape: tuple[int, ...], piece: int, data: st.DataObject
) -> None:
    array = data.draw(arrays.arrays(np.float32, shape, elements=st.sampled_from([1.0, 2.0])))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(statistics, "PIECE_BYTES", piece)
        found = measured(array, "float32")
    row = array.reshape(shape[0], -1) if array.size else array
    if not array.size or row.shape[1] == 1:
        assert found.constant_rows is None
    else:
        assert found.constant_rows == sum(len(set(each)) == 1 for each in row.tolist())


@pytest.mark.parametrize("value", [1e-30, 1e-45, 1e25, 3e38])
def test_squares_neither_vanish_nor_overflow(value: float) -> None:
    array = np.full(1000, value, np.float32)
    assert measured(array, "float32").rms == pytest.approx(float(array[0]), rel=1e-4, abs=0)


def test_large_tensors_of_many_pieces() -> None:
    array = np.random.default_rng(0).normal(size=(300, 1111)).astype(np.float32)
    array[7] = 2.0
    array[299, 1110] = np.nan
    found = measured(array, "float32")
    compare(found, array)
    assert found.constant_rows == 1


def test_integers_and_complex_numbers() -> None:
    found = measured(np.array([[0, -5], [3, 3]], np.int64), "int64")
    assert (found.absmax, found.zero_frac, found.constant_rows) == (5.0, 0.25, 1)
    assert found.headroom == {}
    found = measured(np.array([1 + 2j, complex(math.nan, 0)], np.complex64), "complex64")
    assert (found.nan, found.absmax, found.zero_frac) == (1, 2.0, 0.25)


def test_a_mask_is_meant_to_be_infinite() -> None:
    mask = np.triu(np.full((4, 4), -np.inf, np.float32), 1)
    assert measured(mask, "float32").is_finite
    mask[0, 0] = 1.0
    assert not measured(mask, "float32").is_finite


@pytest.mark.parametrize("name", LOOKED_UP)
@pytest.mark.parametrize("count", [1, 7, 5000])
def test_small_dtypes_are_measured_as_their_values_are(name: str, count: int) -> None:
    dtype = DTYPES[name]
    patterns = np.random.default_rng(count).integers(0, 1 << dtype.bits, count)
    array = patterns.astype(f"u{dtype.bits // 8}")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(statistics, "PIECE_BYTES", 999)  # odd, so that bytes are left over
        found = measured(array, name)
    exact = values(dtype)[patterns]
    assert (found.nan, found.posinf) == (np.isnan(exact).sum(), (exact == np.inf).sum())
    assert found.neginf == (exact == -np.inf).sum()
    assert found.zero_frac == pytest.approx((exact == 0).mean())
    finite = exact[np.isfinite(exact)]
    if finite.size:
        scale = np.abs(finite).max() or 1.0
        assert found.absmax == np.abs(finite).max()
        rms = scale * np.sqrt(((finite / scale) ** 2).mean())
        assert found.rms == pytest.approx(rms, rel=1e-4, abs=0)
