"""Reading extreme-label text: what becomes a sample, what is said about everything else."""

from __future__ import annotations

import gzip
import logging
import os
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import manyhands as mh
from manyhands.data import line_blocks
from manyhands.data.extreme import ExtremeSource
from manyhands.data.stray_numbers import stray_limit
from manyhands.errors import ConfigError, DataError

GOOD = b"3 4 9\n2,7 0:0.5 3:1.25\n1:2\n8\n"


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def written(content: bytes, name: str = "data.txt") -> Path:
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return written


def rows(source: ExtremeSource) -> list[tuple[list[int], list[tuple[int, float]]]]:
    found = []
    for number in range(len(source)):
        features, labels = source.fetch(np.array([number]), seed=0)
        pairs = zip(features.columns.tolist(), features.values.tolist(), strict=True)
        found.append((labels.columns.tolist(), list(pairs)))
    return found


ROWS = [([2, 7], [(0, 0.5), (3, 1.25)]), ([], [(1, 2.0)]), ([8], [])]


@pytest.mark.parametrize(
    "content",
    [
        GOOD,
        GOOD.rstrip(b"\n"),
        GOOD.replace(b"\n", b"\r\n"),
        b"\xef\xbb\xbf" + GOOD,
        b"# made by hand\n\n" + GOOD + b"\n \t \n# end",
        gzip.compress(GOOD),
        gzip.compress(GOOD[:11]) + gzip.compress(GOOD[11:]),
        b"3 4 9\n7,2 3:1.25 0:5e-1 # unsorted\n  1:+2.\n\t8\t\n",
    ],
    ids=["plain", "no end", "crlf", "bom", "comments", "gzip", "two gzip members", "unsorted"],
)
def test_samples_however_they_are_written(write: Any, content: bytes) -> None:
    source = mh.data.extreme(write(content))
    assert rows(source) == ROWS
    assert (source.features.shape, source.labels.shape) == ((3, 4), (3, 9))
    assert source.report.remarks() == []


def test_without_a_header_the_largest_numbers_count(write: Any) -> None:
    source = mh.data.extreme(write(b"2,7 0:0.5 5:1\n1:2\n"))
    assert (source.features.width, source.labels.width) == (6, 8)
    wider = mh.data.extreme(write(b"2,7 0:0.5 5:1\n1:2\n"), features=10, labels=20)
    assert (wider.features.width, wider.labels.width) == (10, 20)


def test_numbers_that_start_at_one(write: Any) -> None:
    source = mh.data.extreme(write(b"1,3 1:5 4:6\n"), first_feature=1, first_label=1)
    assert rows(source) == [([0, 2], [(0, 5.0), (3, 6.0)])]
    assert (source.features.width, source.labels.width) == (4, 3)
    with pytest.raises(DataError, match="line 1: feature 0 is out of range: expected 1 to"):
        mh.data.extreme(write(b"3 0:1\n"), first_feature=1)


REASONS = [
    (b"1,,2 3:1", "a label is missing beside a comma"),
    (b"1, 3:1", "a label is missing beside a comma"),
    (b",1 3:1", "a label is missing beside a comma"),
    (b"x7 3:1", "label 'x7' is not a whole number"),
    (b"1.0 3:1", "label '1.0' is not a whole number"),
    (b"1;2 3:1", "label '1;2' is not a whole number"),
    (b"9 3:1", "label 9 is out of range: expected 0 to 8"),
    (b"-1 3:1", "label -1 is out of range: expected 0 to 8"),
    (b"99999999999999999999 3:1", "label 99999999999999999999 is out of range"),
    (b"1 3", "'3' has no colon: expected feature:value"),
    (b"1 2:1 3", "'3' has no colon: expected feature:value"),
    (b"1 3:", "feature 3 has no value"),
    (b"1 :3", "':3' has no feature before its colon"),
    (b"1 a:3", "feature 'a' is not a whole number"),
    (b"1 1.5:3", "feature '1.5' is not a whole number"),
    (b"1 4:3", "feature 4 is out of range: expected 0 to 3"),
    (b"1 3:abc", "the value 'abc' of feature 3 is not a number"),
    (b"1 3:1,5", "the value '1,5' of feature 3 is not a number"),
    (b"1 3:1:2", "the value '1:2' of feature 3 is not a number"),
    (b"1 3:0x10", "the value '0x10' of feature 3 is not a number"),
    (b"1 3:1e", "the value '1e' of feature 3 is not a number"),
    (b"1 3:nan", "the value 'nan' of feature 3 is not finite"),
    (b"1 3:-Inf", "the value '-Inf' of feature 3 is not finite"),
    (b"1 3:1e39", "the value '1e39' of feature 3 is too large for a float"),
    (b"1 3:3e38 3:3e38", "the values of feature 3 add up to more than a float holds"),
    (b"0:1\r1:2", "a carriage return stands in its middle"),
    (b"# a comment\r1 3:1\r2 3:1", "a carriage return stands in its middle"),
    (b"\x00\x01\xfe", r"label '\\x00\\x01\\xfe' is not a whole number"),
    (b"1 2:\xc3\xa9", r"the value '\\xc3\\xa9' of feature 2 is not a number"),
]


@pytest.mark.parametrize(("line", "reason"), REASONS)
def test_a_malformed_line_is_named_with_its_number_and_reason(
    write: Any, caplog: pytest.LogCaptureFixture, line: bytes, reason: str
) -> None:
    path = write(b"3 4 9\n2,7 0:0.5 3:1.25\n" + line + b"\n8\n")
    plain = reason.replace("\\\\", "\\")
    with pytest.raises(DataError) as raised:
        mh.data.extreme(path)
    assert f"has 1 malformed line: line 3: {plain}" in str(raised.value)
    with caplog.at_level(logging.WARNING):
        source = mh.data.extreme(path, bad_lines="skip")
    assert rows(source) == [ROWS[0], ROWS[2]]
    assert source.report.skipped == 1
    assert source.report.first_skipped[0][0] == 3
    assert plain in source.report.first_skipped[0][1]
    assert f"1 malformed line skipped, 2 samples read. line 3: {plain}" in caplog.text


def test_every_malformed_line_is_counted_and_the_first_are_named(write: Any) -> None:
    path = write(b"".join(b"1 2:3\n" if n % 3 else b"1 2:x\n" for n in range(300)))
    with pytest.raises(DataError, match=r"100 malformed lines or more: line 1: .*and 95 more\."):
        mh.data.extreme(path)
    source = mh.data.extreme(path, bad_lines="skip")
    assert (len(source), source.report.skipped) == (200, 100)
    assert [line for line, _ in source.report.first_skipped] == list(range(1, 301, 3))


def test_lines_are_numbered_through_blocks(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_blocks, "BLOCK_BYTES", 7)
    lines = [b"1 2:3" if n % 5 else b"bad" for n in range(1, 40)]
    source = mh.data.extreme(write(b"\n".join(lines)), bad_lines="skip")
    assert [line for line, _ in source.report.first_skipped] == [5, 10, 15, 20, 25, 30, 35]
    assert (len(source), source.report.lines) == (32, 39)


def test_doubled_features_add_up_and_doubled_labels_count_once(
    write: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        source = mh.data.extreme(write(b"4,1,4 3:1 2:5 3:2\n7 1:1\n"))
    assert rows(source)[0] == ([1, 4], [(2, 5.0), (3, 3.0)])
    assert source.report.repeated == 1
    assert "1 line with a feature or label that is named twice" in caplog.text
    assert "line 1: feature 3 is named twice" in caplog.text


def test_numbers_out_of_all_proportion_are_damage(write: Any) -> None:
    lines = [b"%d %d:1" % (n % 50, n) for n in range(2000)]
    lines[16] = b"3 1:1 2000000000:1"
    lines[40] = b"99999999 7:1"
    lines[41] = b"1999999999 1999999999:1"
    path = write(b"\n".join(lines))
    with pytest.raises(DataError) as raised:
        mh.data.extreme(path)
    assert (
        "3 malformed lines: line 17: feature 2000000000 is far beyond the others, which end at "
        in (str(raised.value))
    )
    assert "1999; set features=" in str(raised.value)
    assert "line 41: label 99999999 is far beyond the others, which end at 49" in str(raised.value)
    source = mh.data.extreme(path, bad_lines="skip")
    assert (source.features.width, source.labels.width, len(source)) == (2000, 50, 1997)
    assert [line for line, _ in source.report.first_skipped] == [17, 41, 42]
    assert rows(source)[15:17] == [([15], [(15, 1.0)]), ([17], [(17, 1.0)])]
    meant = mh.data.extreme(path, features=2**31 - 1, labels=2**31 - 1)
    assert len(meant) == 2000


def test_numbers_that_spread_evenly_are_believed(write: Any) -> None:
    numbers = np.random.default_rng(0).integers(0, 2**31 - 1, 500)
    source = mh.data.extreme(write(b"\n".join(b"%d %d:1" % (n, n) for n in numbers)))
    assert source.features.width == source.labels.width == numbers.max() + 1


def test_large_numbers_among_many_entries_are_believed() -> None:
    numbers = np.zeros(200_000, dtype=np.int32)
    numbers[7] = 1_500_000
    assert stray_limit(numbers) is None
    assert stray_limit(numbers[:1000]) == 1_000_000


def test_a_source_can_be_widened(write: Any) -> None:
    source = mh.data.extreme(write(GOOD))
    wider = source.widened(10, 20)
    assert (wider.features.width, wider.labels.width) == (10, 20)
    assert rows(wider) == ROWS
    with pytest.raises(ConfigError, match="4 can't become 3"):
        source.widened(3, 20)


@pytest.mark.parametrize("announced", [b"2", b"4", b"99999999999999999999999"])
def test_a_header_with_another_number_of_samples(write: Any, announced: bytes) -> None:
    path = write(announced + GOOD[1:])
    with pytest.raises(DataError, match="in its header but holds 3: it is truncated or"):
        mh.data.extreme(path)
    source = mh.data.extreme(path, bad_lines="skip")
    assert rows(source) == ROWS
    assert "in its header but holds 3" in source.report.remarks()[0]


def test_blank_lines_may_be_samples_to_the_header(write: Any) -> None:
    assert len(mh.data.extreme(write(b"4 4 9\n2 0:0.5\n\n1:2\n8\n"))) == 3


@pytest.mark.parametrize(
    "header", [b"3 4", b"-3 4 9", b"3 0 9", b"3 4 9 1", b"3 x 9", b"3 4 9999999999", b"3.0 4 9"]
)
def test_a_broken_header_is_named(write: Any, header: bytes) -> None:
    path = write(b"# first\n" + header + b"\n2 0:0.5\n")
    with pytest.raises(DataError, match=r"line 2: '.*' is no header and no sample: expected three"):
        mh.data.extreme(path)
    source = mh.data.extreme(path, bad_lines="skip")
    assert rows(source) == [([2], [(0, 0.5)])]
    assert source.report.first_skipped[0][0] == 2


def test_whether_there_is_a_header_can_be_said(write: Any) -> None:
    with pytest.raises(DataError, match="line 1: '2 0:1' is no header: expected three"):
        mh.data.extreme(write(b"2 0:1\n"), header=True)
    with pytest.raises(DataError, match="line 1: '4' has no colon"):
        mh.data.extreme(write(GOOD), header=False)


def test_a_header_is_not_believed(write: Any) -> None:
    path = write(b"2000000000 2000000000 2000000000\n1 2:3\n")
    tracemalloc.start()
    source = mh.data.extreme(path, bad_lines="skip")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert source.labels.width == 2_000_000_000
    assert peak < 32 << 20


def test_a_file_cut_off_in_its_last_line(write: Any) -> None:
    for cut in range(len(GOOD) - 2):  # without its last line, which has no damage to show
        path = write(GOOD[: cut + 1])
        with pytest.raises(DataError, match=r"data\.txt"):
            mh.data.extreme(path)


@pytest.mark.parametrize("mode", ["raise", "skip"])
def test_files_that_cannot_be_read_to_their_end(write: Any, tmp_path: Path, mode: Any) -> None:
    def refused(path: Path, message: str) -> None:
        with pytest.raises(DataError, match=message):
            mh.data.extreme(path, bad_lines=mode)

    refused(tmp_path / "none", "can't be read: No such file")
    refused(tmp_path, "can't be read: Is a directory")
    refused(write(b""), "is empty")
    refused(write(gzip.compress(b"")), "no sample in its first 0 lines")
    refused(write(b"\n\n# nothing\n"), "no sample in its first 3 lines")
    refused(write(b"3 4 9\n"), "no sample in its first 1 line")
    refused(write(gzip.compress(GOOD)[:-9]), "damaged gzip")
    refused(write(gzip.compress(GOOD)[:-3] + b"abc"), "damaged gzip")
    refused(write(b"\x1f\x8b\x08 not gzip at all"), "damaged gzip")
    refused(write(b"PK\x03\x04" + GOOD), "a zip archive: unpack it")
    refused(write(GOOD.decode().encode("utf-16")), "UTF-16")
    refused(write(b"<!DOCTYPE html>\n<html>\n</html>\n"), "no sample in its first 3 lines: line 1")
    refused(write(os.urandom(4096).replace(b"\x1f\x8b", b"")), "no sample|malformed|is a")
    refused(write(b"7:1\n"), "no label in any line")
    refused(write(b"7\n"), "no feature in any line")


def test_a_line_without_end_is_refused(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_blocks, "BLOCK_BYTES", 1 << 10)
    monkeypatch.setattr(line_blocks, "LONGEST_LINE_BYTES", 1 << 14)
    path = write(b"1 2:3\n" + b"1" * (1 << 15))
    with pytest.raises(DataError, match="line 2 is longer than"):
        mh.data.extreme(path, bad_lines="skip")


def test_memory_is_little_more_than_the_result(write: Any) -> None:
    line = (
        b",".join(b"%d" % n for n in range(5)) + b" " + b" ".join(b"%d:1.5" % n for n in range(60))
    )
    path = write(gzip.compress((line + b"\n") * 60_000))
    tracemalloc.start()
    source = mh.data.extreme(path)
    now, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    held = sum(tensor.numel() * tensor.element_size() for tensor in source.tensors())
    assert held > 28e6
    assert now < held + (4 << 20)
    assert peak < 1.3 * held + (16 << 20)


def test_the_source_moves_between_processes_with_its_report(write: Any) -> None:
    source = mh.data.extreme(write(GOOD + b"bad\n"), bad_lines="skip")
    copied = pickle.loads(pickle.dumps(source))
    assert rows(copied) == ROWS
    assert copied.report.skipped == 1
    moved = source.with_tensors([tensor.clone() for tensor in source.tensors()])
    assert isinstance(moved, ExtremeSource)
    assert rows(moved) == ROWS


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"features": 0}, "features is 0"),
        ({"labels": 2**31}, "labels is 2147483648"),
        ({"features": "a"}, "features is 'a'"),
        ({"features": 2.5}, "features is 2.5"),
        ({"labels": True}, "labels is True"),
        ({"header": "x"}, "header is 'x'"),
        ({"first_feature": 2}, "first_feature is 2"),
        ({"first_label": -1}, "first_label is -1"),
        ({"bad_lines": "ignore"}, "bad_lines is 'ignore'"),
        ({"path": None}, "path is None"),
        ({"path": "a\0b"}, "path is 'a"),
    ],
)
def test_wrong_arguments(write: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        mh.data.extreme(**({"path": write(GOOD)} | arguments))


def test_lines_that_end_as_on_old_macs_are_not_taken_for_one(write: Any) -> None:
    path = write(b"0:1 1:1\r1:2\r0:3\r")
    with pytest.raises(DataError, match=r"line 1: a carriage return .*line feeds"):
        mh.data.extreme(path, labels=9, bad_lines="skip")
