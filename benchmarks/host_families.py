"""How fast the host executor runs models that no row of host.py is, beside XLA:CPU.

    python benchmarks/host_families.py [NAME ...] [--size narrow|uneven|real] [--target T]

The models are those of tests/models/families.py: narrow ones, and ones whose extents divide by
nothing. A ratio of 2 is twice as fast as `jax.jit`; the last line is the geometric mean. What NumPy
executes in between is named behind a row.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import Any

from host import medians

sys.path.append(str(Path(__file__).parents[1] / "tests"))


def measure(name: str, size: Any, target: str) -> tuple[str, float]:
    """A row of the table, and how many times as fast as XLA:CPU it is."""
    import jax
    import numpy as np

    import glia
    from models.families import FAMILIES

    function, arguments = FAMILIES[name](size)
    jitted = jax.jit(function)
    model = glia.load(glia.compile(jitted.lower(*arguments), target=target), device="host")
    leaves = [np.asarray(each) for each in jax.tree.leaves(arguments)]
    bound = model.bind()
    times = medians(
        {
            "host": lambda: bound(*leaves),
            "xla": lambda: jax.block_until_ready(jitted(*arguments)),
        }
    )
    ratio = times["xla"] / times["host"]
    left = ", ".join(f"{count} {what}" for (what, _), count in model.host_report.in_python.items())
    cells = [name, f"{1e3 * times['host']:.2f}", f"{1e3 * times['xla']:.2f}", f"{ratio:.2f}", left]
    return f"| {' | '.join(cells)} |", ratio


def main() -> int:
    """Print the table, a row as soon as it is measured."""
    import models.families as families

    sizes = {"narrow": families.NARROW, "uneven": families.UNEVEN, "real": families.REAL}
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help="of families; all of them without any")
    parser.add_argument("--size", choices=sizes, default="narrow")
    parser.add_argument("--target", default="trn2")
    given = parser.parse_args()
    unknown = {*given.names} - {*families.FAMILIES}
    if unknown:
        parser.error(f"no family {min(unknown)}; there are {', '.join(families.FAMILIES)}")
    print("| model | host ms | XLA:CPU ms | of XLA:CPU | by NumPy |\n|" + " --- |" * 5)
    ratios = []
    for name in given.names or families.FAMILIES:
        line, ratio = measure(name, sizes[given.size], given.target)
        ratios.append(ratio)
        print(line, flush=True)
    print(f"geometric mean {math.exp(sum(map(math.log, ratios)) / len(ratios)):.2f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
