"""Functions that the tests of native code compile."""

from __future__ import annotations

from types import SimpleNamespace

STEP = 3
LIMIT = 5


def helper(m: SimpleNamespace, a: int, b: int) -> int:
    if (a > b and b != 0) or a == -1:
        return a // b if b else STEP
    if not a:
        return 7
    return min(a, b) - max(a, -b)


def collatz(m: SimpleNamespace) -> int:
    """Steps of each number in `numbers` to 1, into `lengths`; the sum."""
    total = 0
    index = 0
    while index < m.numbers[0]:
        index += 1
        number = m.numbers[index]
        steps = 0
        while True:
            if number <= 1:
                break
            number = number // 2 if number % 2 == 0 else STEP * number + 1
            steps += 1
            if steps < 10000:
                continue
            return -1
        m.lengths[index - 1] = steps
        total += steps
    return total


def arithmetic(m: SimpleNamespace) -> int:
    a = m.numbers[0]
    b = m.numbers[1]
    m.lengths[0] = a // b
    m.lengths[1] = a % b
    m.lengths[2] = a >> 3 & 255 | 64
    m.lengths[3] = helper(m, a, b)
    m.lengths[4] -= a * b
    return (a < b) + (a != b) + (a in (b, STEP, 4 * b))


def limited(m: SimpleNamespace) -> int:
    return min(m.numbers[0], LIMIT)


def outside(m: SimpleNamespace) -> int:
    """Not in the subset that is compiled."""
    return [m][0]
