"""What `check.expect_*` of StableHLO's interpreter accept, on arrays.

Two things differ. NaN equals NaN: the programs whose results hold NaN are not run there. And three
units in the last place of the terms that a result sums up (`term_magnitudes`) are allowed, since
the order of a sum is the implementation's; ten times as many where the clone's own interpreter is
too inaccurate for the check, which the clone then says.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from glia.base.dtype import float_limits
from glia.conformance.stablehlo.program import ValueCheck


def describe_mismatch(
    check: ValueCheck,
    actual: np.ndarray,
    expected: np.ndarray,
    terms: Callable[[], np.ndarray] | None = None,
) -> str:
    """Where and by how much `actual` is outside of what `check` accepts; "" when it is inside.

    `terms` gives the magnitudes of the result's terms and is called only where units in the last
    place of the result are exceeded.
    """
    if (actual.dtype, actual.shape) != (expected.dtype, expected.shape):
        found, wanted = (f"{a.dtype}{list(a.shape)}" for a in (actual, expected))
        return f"{found}, expected {wanted}"
    parts = [(actual, expected)]
    if actual.dtype.kind == "c":
        parts = [(actual.real, expected.real), (actual.imag, expected.imag)]
    wrong = np.logical_or.reduce([_is_wrong(check, *part) for part in parts])
    if wrong.any() and check.units and terms is not None:
        wrong = wrong & ~_is_near_terms(check, actual, expected, terms())
    if not wrong.any():
        return ""
    index = tuple(int(i) for i in np.argwhere(wrong)[0])
    text = f"{int(wrong.sum())} of {wrong.size} elements"
    return f"{text}, first at {list(index)}: {actual[index]}, expected {expected[index]}"


def _is_near_terms(
    check: ValueCheck, actual: np.ndarray, expected: np.ndarray, terms: np.ndarray
) -> np.ndarray:
    """Whether elements are as near as the check's units in the last place of their terms."""
    part = actual.real.dtype
    wide = np.complex128 if actual.dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        error = np.abs(actual.astype(wide) - expected.astype(wide))
        unit = float(float_limits(part).eps) * np.abs(terms.astype(wide))
        return np.asarray(error <= check.units * unit)


def _is_wrong(check: ValueCheck, actual: np.ndarray, expected: np.ndarray) -> np.ndarray:
    if check.kind == "close":
        return ulp_difference(actual, expected) > check.limit
    with np.errstate(all="ignore"):
        if check.kind == "eq":
            return np.asarray((actual != expected) & ~((actual != actual) & (expected != expected)))
        a, b = actual.astype(np.float64), expected.astype(np.float64)
        is_near = np.isfinite(a) & np.isfinite(b) & (np.abs(a - b) <= check.limit)
        return np.asarray(~((a == b) | is_near | (np.isnan(a) & np.isnan(b))))


def ulp_difference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """How many floats lie between two, counting -0 and +0 as one; NaN is 0 from NaN.

    A difference that involves an infinity or one NaN is infinite.
    """
    bits = 8 * a.dtype.itemsize
    word = np.dtype(f"u{a.dtype.itemsize}")
    magnitude = np.uint64((1 << (bits - 1)) - 1)
    places = []
    for array in (a, b):
        raw = np.ascontiguousarray(array).view(word).astype(np.uint64)
        distance = (raw & magnitude).astype(np.float64)
        places.append(np.where(raw > magnitude, -distance, distance))
    with np.errstate(all="ignore"):
        wide = [array.astype(np.float64) for array in (a, b)]
        is_same = (wide[0] == wide[1]) | (np.isnan(wide[0]) & np.isnan(wide[1]))
        is_finite = np.isfinite(wide[0]) & np.isfinite(wide[1])
        apart = np.where(is_finite, np.abs(places[0] - places[1]), np.inf)
    return np.where(is_same, 0, apart)
