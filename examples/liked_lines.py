"""Twenty lines of text, marked as what is liked (+) or not (-), and the numbers of their words."""

from __future__ import annotations

LINES = """
+ the soup was warm and good
+ a lovely evening by the sea
+ i liked the music very much
+ friendly people and good bread
+ the book was a joy to read
+ we will gladly come again
+ bright rooms and a warm bed
+ the best coffee in the town
+ a good film with lovely music
+ i gladly read the book again
- the soup was cold and bad
- a dull evening in the rain
- i hated the noise very much
- rude people and stale bread
- the book was a pain to read
- we will never come again
- dark rooms and a cold bed
- the worst coffee in the town
- a bad film with dull noise
- i never read the book again
"""
UNSEEN = ("good bread and friendly people", "never a cold soup again")
LENGTH = 8  # words of a line, and what marks its beginning; shorter ones are filled with zeros


def data() -> tuple[list[list[int]], list[int], dict[str, int]]:
    """The numbers of the lines' words, the lines' classes, and the number of each word."""
    pairs = [line.split(" ", 1) for line in LINES.strip().splitlines()]
    words = sorted({word for _, text in pairs for word in text.split()})
    numbers = {word: place for place, word in enumerate(words, 2)}
    return (
        [encoded(text, numbers) for _, text in pairs],
        [int(sign == "+") for sign, _ in pairs],
        numbers,
    )


def encoded(text: str, numbers: dict[str, int]) -> list[int]:
    """The numbers of a line's words; those that are not known are left out."""
    found = [1, *(numbers[word] for word in text.split() if word in numbers)][:LENGTH]
    return found + [0] * (LENGTH - len(found))
