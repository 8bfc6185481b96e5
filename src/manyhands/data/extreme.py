"""Reads extreme-label text: the XMLRepository's form, and libsvm with several labels.

    3 4 9                 samples, features, labels: the XMLRepository's header; libsvm has none
    2,7 0:0.5 3:1.25      labels with commas between them, then feature:value
    1:2                   no labels: the first word has a colon
    8                     no features

Lines are parsed natively, a block at a time (decision 18). Nothing that a file says is believed:
a line becomes a sample or is named with its number and the reason, and memory grows with what has
been read, not with what a header announces.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from manyhands import kernels
from manyhands.data.extreme_header import MOST_NUMBERS, Header, first_line
from manyhands.data.growing_array import GrowingArray
from manyhands.data.line_blocks import line_blocks
from manyhands.data.reading_report import NOTES_KEPT, ReadingReport, counted, shown
from manyhands.data.sparse_source import SparseSource, packed
from manyhands.data.stray_numbers import stray_limit
from manyhands.errors import ConfigError, DataError
from manyhands.sparse.csr import CSR

BadLines = Literal["raise", "skip"]

logger = logging.getLogger(__name__)


class ExtremeSource(SparseSource):
    """The samples of a file, and in `report` what else was in it."""

    def __init__(self, features: CSR, labels: CSR, report: ReadingReport) -> None:
        super().__init__(features, labels)
        self.report = report

    def widened(self, features: int, labels: int) -> ExtremeSource:
        """The same samples as some of more features and labels, to fit those of another file."""
        wider = []
        for rows, width in ((self.features, features), (self.labels, labels)):
            assert isinstance(rows, CSR)
            if width < rows.width:
                raise ConfigError(f"{rows.width} can't become {width}: expected as many or more.")
            wider.append(CSR.unchecked(rows.offsets, rows.columns, rows.values, width))
        return ExtremeSource(wider[0], wider[1], self.report)


def extreme(
    path: str | PathLike[str],
    *,
    features: int | None = None,
    labels: int | None = None,
    header: bool | None = None,
    first_feature: int = 0,
    first_label: int = 0,
    bad_lines: BadLines = "raise",
) -> ExtremeSource:
    """A file of samples with few of many features and labels, plain or gzipped, as a source.

    `features` and `labels` are how many there are; without them the header says so, or, where there
    is none, the largest number that occurs, unless it is out of all proportion. For test data pass
    the training data's (`train.features.width`), so that both fit one model. `header` is whether
    the first line is one; None looks at it. libsvm's files count features from 1: pass
    `first_feature=1`.

    Blank lines and comments (`#`) are passed over; features may come in any order. A line that is
    no sample (a word that is no number, a number out of range, nan, a value missing) is malformed:
    `bad_lines="raise"` names the first ones with their reasons in a `DataError`; "skip" leaves them
    out, says how many and which in a log message, and in `source.report`. A file that can't be read
    to its end, such as a truncated gzip file, is a `DataError` in both cases.
    """
    widths = _Widths(features, labels, first_feature, first_label)
    widths.check()
    if header not in (None, True, False):
        raise ConfigError(
            f"header is {header!r}: expected True, False, or None to look at the file."
        )
    if bad_lines not in ("raise", "skip"):
        raise ConfigError(f"bad_lines is {bad_lines!r}: expected 'raise' or 'skip'.")
    if not isinstance(path, (str, PathLike)) or "\0" in str(path):
        raise ConfigError(f"path is {path!r:.80}: expected the path of a file.")
    return _Reader(Path(path), header, widths, skip=bad_lines == "skip").read()


@dataclass(slots=True)
class _Widths:
    """How many features and labels there are, None while unknown, and the first number of each."""

    features: int | None
    labels: int | None
    first_feature: int
    first_label: int

    def check(self) -> None:
        for name in ("features", "labels"):
            count = getattr(self, name)
            if count is not None and not (_is_whole(count) and 1 <= count <= MOST_NUMBERS):
                raise ConfigError(
                    f"{name} is {count!r}: expected a whole number from 1 to {MOST_NUMBERS}."
                )
        for name in ("first_feature", "first_label"):
            first = getattr(self, name)
            if not _is_whole(first) or first not in (0, 1):
                raise ConfigError(f"{name} is {first!r}: expected 0 or 1, the smallest one used.")


def _is_whole(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


class _Reader:
    """One reading of one file."""

    def __init__(self, path: Path, header: bool | None, widths: _Widths, *, skip: bool) -> None:
        self._path = path
        self._header_expected = header
        self._widths = widths
        self._skip = skip
        self._report = ReadingReport(path)
        self._announced: Header | None = None
        self._sample_lines = GrowingArray(np.int64)
        self._label_counts = GrowingArray(np.int64)
        self._feature_counts = GrowingArray(np.int64)
        self._labels = GrowingArray(np.int32)
        self._columns = GrowingArray(np.int32)
        self._values = GrowingArray(np.float32)

    def read(self) -> ExtremeSource:
        before_samples = True
        for block in line_blocks(self._path):
            if before_samples:
                block, before_samples = self._take_header(block)
            self._take_samples(block)
            if not self._skip and self._report.skipped >= NOTES_KEPT:
                break
        return self._source()

    def _source(self) -> ExtremeSource:
        report, widths = self._report, self._widths
        feature_counts, columns = self._feature_counts.finish(), self._columns.finish()
        label_counts, labels = self._label_counts.finish(), self._labels.finish()
        kept = np.ones(len(feature_counts), dtype=np.bool_)
        if widths.features is None:
            self._drop_strays(kept, "feature", feature_counts, columns, widths.first_feature)
        if widths.labels is None:
            self._drop_strays(kept, "label", label_counts, labels, widths.first_label)
        self._check_lines()
        self._check_header()
        features = packed(feature_counts, columns, self._values.finish(), widths.features or 0)
        targets = packed(label_counts, labels, None, widths.labels or 0)
        if not kept.all():
            features, targets = features[torch.from_numpy(kept)], targets[torch.from_numpy(kept)]
        features.width = widths.features or self._largest("feature", features) + 1
        targets.width = widths.labels or self._largest("label", targets) + 1
        for remark in report.remarks():
            logger.warning("%s", remark)
        return ExtremeSource(features, targets, report)

    def _drop_strays(
        self,
        kept: npt.NDArray[np.bool_],
        what: str,
        counts: npt.NDArray[np.int64],
        numbers: npt.NDArray[np.int32],
        first: int,
    ) -> None:
        """Note samples with stray numbers (`stray_numbers.py`) as malformed, and keep them not."""
        limit = stray_limit(numbers)
        if limit is None:
            return
        usual = int(numbers[numbers < limit].max(initial=0)) + first
        lines, ends = self._sample_lines.finish(), np.cumsum(counts)
        for entry in np.flatnonzero(numbers >= limit):
            row = int(np.searchsorted(ends, entry, side="right"))
            if kept[row]:
                kept[row] = False
                reason = (
                    f"{what} {int(numbers[entry]) + first} is far beyond the others, which end at "
                    f"{usual}; set {what}s= if there are so many"
                )
                self._report.move_to_skipped(int(lines[row]), reason)

    def _take_header(self, block: bytes) -> tuple[bytes, bool]:
        """The block without a header, and whether one may still come."""
        line = first_line(block)
        if line is None:
            return block, True
        try:
            header = line.header(self._header_expected)
        except DataError as error:
            self._report.note_skipped(1, [(self._report.lines + line.number, str(error))])
            return line.without(block), False
        if header is None:
            return block, False
        self._announced = header
        self._report.announced = True
        self._widths.features = self._widths.features or header.features
        self._widths.labels = self._widths.labels or header.labels
        return line.without(block), False

    def _take_samples(self, block: bytes) -> None:
        report, widths = self._report, self._widths
        found = kernels.parse_label_lines(
            block,
            report.lines + 1,
            first_label=widths.first_label,
            label_count=widths.labels or MOST_NUMBERS,
            first_feature=widths.first_feature,
            feature_count=widths.features or MOST_NUMBERS,
            most_notes=NOTES_KEPT,
        )
        report.lines += found.lines
        report.blank += found.blank
        report.samples += len(found.label_counts)
        report.note_skipped(found.faults, found.first_faults)
        report.note_repeated(found.repeats, found.first_repeats)
        if self._skip or not report.skipped:
            self._sample_lines.extend(found.sample_lines)
            self._label_counts.extend(found.label_counts)
            self._feature_counts.extend(found.feature_counts)
            self._labels.extend(found.labels)
            self._columns.extend(found.columns)
            self._values.extend(found.values)

    def _check_lines(self) -> None:
        report = self._report
        reasons = shown(report.first_skipped, report.skipped)
        if report.samples == 0:
            expected = reasons or "expected one in each, labels and then feature:value."
            lines = counted(report.lines, "line")
            raise DataError(f"{self._path} has no sample in its first {lines}: {expected}")
        if report.skipped and not self._skip:
            lines = counted(report.skipped, "malformed line")
            more = " or more" if report.skipped >= NOTES_KEPT else ""
            raise DataError(
                f"{self._path} has {lines}{more}: {reasons} Mend the file, or set "
                "bad_lines=skip to leave them out."
            )

    def _check_header(self) -> None:
        """Compare the number of samples that the header announces with those that are there. Blank
        lines may be samples without labels and features to whoever wrote it."""
        report = self._report
        held = report.samples + report.skipped
        if self._announced is None or self._announced.samples in (held, held + report.blank):
            return
        problem = (
            f"{self._path} announces {counted(self._announced.samples, 'sample')} in its header "
            f"but holds {held:,}"
        )
        if not self._skip:
            raise DataError(
                f"{problem}: it is truncated or its header is wrong; mend it, or set "
                "bad_lines=skip to read what is there."
            )
        report.header = f"{problem}."

    def _largest(self, what: str, rows: CSR) -> int:
        if not rows.nnz:
            raise DataError(
                f"{self._path} has no {what} in any line, nor a header: set {what}s=, how many "
                "there are."
            )
        return int(rows.columns.max())
