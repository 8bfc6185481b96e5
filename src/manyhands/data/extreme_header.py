"""The header of extreme-label text, `samples features labels`, and the line that may be one."""

from __future__ import annotations

from dataclasses import dataclass

from manyhands.errors import DataError

MOST_NUMBERS = 2**31 - 1  # features or labels: columns are 32-bit numbers
_LONGEST = 200  # bytes; a longer line is no header


@dataclass(frozen=True, slots=True)
class Header:
    """What a file announces about itself. Not to be believed before it is compared."""

    samples: int
    features: int
    labels: int


@dataclass(frozen=True, slots=True)
class FirstLine:
    """The first line that is neither blank nor a comment: where it is in its block, which line of
    the block it is, and its words."""

    start: int
    number: int
    words: tuple[str, ...]

    def without(self, block: bytes) -> bytes:
        """The block with this line as a comment, so that line numbers stay."""
        return block[: self.start] + b"#" + block[self.start :]

    def header(self, expected: bool | None) -> Header | None:
        """The header that it is, or None for a sample; None for `expected` looks at the line.

        `DataError` with the reason for what is neither.
        """
        several_bare_words = len(self.words) > 1 and not any(":" in word for word in self.words)
        if expected is False or (expected is None and not several_bare_words):
            return None
        line = f"'{' '.join(self.words)[:40]}' is no header"
        if expected is None:
            line += " and no sample"
        wanted = "expected three whole numbers, samples features labels"
        if len(self.words) != 3 or not all(word.isdecimal() for word in self.words):
            raise DataError(f"{line}: {wanted}")
        samples, features, labels = (int(word[:20]) for word in self.words)
        if not (0 < features <= MOST_NUMBERS and 0 < labels <= MOST_NUMBERS):
            raise DataError(f"{line}: {wanted}, the last two from 1 to {MOST_NUMBERS}")
        return Header(samples, features, labels)


def first_line(block: bytes) -> FirstLine | None:
    """The first line of a block that may be a header or a sample."""
    start, number = 0, 1
    while start < len(block):
        feed = block.find(b"\n", start)
        end = len(block) if feed < 0 else feed
        # ASCII with escapes: a decimal digit of another script is not one here.
        text = block[start : min(end, start + _LONGEST)].decode("ascii", errors="backslashreplace")
        words = text.split("#")[0].split()
        if words:
            return FirstLine(start, number, tuple(words))
        start, number = end + 1, number + 1
    return None
