"""What a reader met in a file of lines besides samples, in numbers and in words."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

NOTES_KEPT = 100  # reasons that are remembered; all lines are counted
NOTES_SHOWN = 5


@dataclass(slots=True)
class ReadingReport:
    """Lines by what they were. `skipped` are no samples; `repeated` name a feature twice, whose
    values were added up, or a label twice, which counts once. `first_*` hold the first hundred, as
    (line number, reason); lines count from 1."""

    path: Path
    lines: int = 0
    blank: int = 0
    samples: int = 0
    skipped: int = 0
    repeated: int = 0
    first_skipped: list[tuple[int, str]] = field(default_factory=list)
    first_repeated: list[tuple[int, str]] = field(default_factory=list)
    announced: bool = False  # whether there is a header
    header: str = ""  # what is wrong with the header, if anything is

    def note_skipped(self, count: int, first: list[tuple[int, str]]) -> None:
        """Count lines that are no samples; `first` are those of them with a reason."""
        self.skipped += count
        self.first_skipped += first[: NOTES_KEPT - len(self.first_skipped)]

    def move_to_skipped(self, line: int, reason: str) -> None:
        """Count a line as malformed that was counted as a sample."""
        self.samples -= 1
        self.skipped += 1
        self.first_skipped = sorted([*self.first_skipped, (line, reason)])[:NOTES_KEPT]

    def note_repeated(self, count: int, first: list[tuple[int, str]]) -> None:
        """Count lines that name a feature or a label twice."""
        self.repeated += count
        self.first_repeated += first[: NOTES_KEPT - len(self.first_repeated)]

    def remarks(self) -> list[str]:
        """What a user should hear, a sentence each; nothing about a file that is in order."""
        remarks = [self.header] if self.header else []
        if self.skipped:
            remarks.append(
                f"{self.path}: {counted(self.skipped, 'malformed line')} skipped, "
                f"{counted(self.samples, 'sample')} read. {shown(self.first_skipped, self.skipped)}"
            )
        if self.repeated:
            remarks.append(
                f"{self.path}: {counted(self.repeated, 'line')} with a feature or label that is "
                "named twice; values were added up, labels count once. "
                f"{shown(self.first_repeated, self.repeated)}"
            )
        return remarks


def shown(notes: list[tuple[int, str]], count: int) -> str:
    """The first notes in a sentence, and how many more there are."""
    if not notes:
        return ""
    first = notes[:NOTES_SHOWN]
    text = "; ".join(f"line {line}: {reason}" for line, reason in first)
    more = f"; and {count - len(first):,} more" if count > len(first) else ""
    return f"{text}{more}."


def counted(count: int, what: str) -> str:
    """`1 line`, `2 lines`."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"
