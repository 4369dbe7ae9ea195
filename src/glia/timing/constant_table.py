"""The constants that simulated times depend on, as text with their sources."""

from __future__ import annotations

from glia.arch import ARCHS
from glia.arch.constant import Constant, Reading
from glia.timing.simulate import TIMED_CONSTANTS


def timing_constants() -> list[str]:
    """A line for each constant of the timing model, those with an assumed value first.

    Under a constant that several publications give, or that was read off measurements, stand what
    each gives, and the spread of all. One that a publication contradicts is marked so.
    """
    rows = [
        (constant.confidence != "assumed", f"{arch.name} {name}", constant)
        for arch in ARCHS
        for name, constant in arch.constants.items()
        if name.partition(".")[0] in TIMED_CONSTANTS
    ]
    lines = []
    for _, name, constant in sorted(rows, key=lambda row: row[0]):
        value, spread = f"{constant.value:g} {constant.unit}", ""
        low, high = constant.spread
        if low < high:
            spread = f", {low:g} to {high:g}"
        agreed = all(each.supports(constant.value) for each in constant.readings)
        confidence = constant.confidence if agreed else "contradicted"
        lines.append(f"{name} = {value}{spread} [{confidence}] {constant.source}")
        lines += [f"    {_reading_text(each, constant)}" for each in constant.readings]
    return lines


def _reading_text(reading: Reading, constant: Constant) -> str:
    """What a publication gives, and whether the value taken is not that."""
    span = f"{reading.low:g}" + (f" to {reading.high:g}" if reading.low < reading.high else "")
    doubt = "" if reading.supports(constant.value) else " (contradicts)"
    return f"{span} {constant.unit}{doubt}: {reading.publication}, {reading.where}"


def assumed_constants() -> list[str]:
    """One line for each hardware constant whose value no public source gives."""
    return [
        f"{arch.name} {name} = {arch.constants[name].value:g} {arch.constants[name].unit}"
        for arch in ARCHS
        for name in arch.assumed
    ]
