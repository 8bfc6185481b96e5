"""Extreme-label text under hypothesis: what is written comes back, and damage is named, whatever it
is."""

from __future__ import annotations

import gzip
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import manyhands as mh
from manyhands.data.extreme import ExtremeSource
from manyhands.errors import DataError

FEATURES, LABELS = 50, 30
Sample = tuple[list[int], dict[int, float]]

VALUES = st.floats(width=32, allow_nan=False, allow_infinity=False)
SAMPLES = st.tuples(
    st.lists(st.integers(0, LABELS - 1), unique=True, max_size=5),
    st.dictionaries(st.integers(0, FEATURES - 1), VALUES, max_size=8),
).filter(lambda sample: sample[0] or sample[1])
FORMS = st.sampled_from(["{!r}", "{:.9g}", "{:.17e}", "{:+.20f}"])
SPACES = st.sampled_from([" ", "\t", "  ", " \t "])
ENDS = st.sampled_from(["\n", "\r\n", " \n", "\n\n", "\n# note\n", " # tail\n"])


def read(content: bytes, **arguments: object) -> ExtremeSource:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.txt"
        path.write_bytes(content)
        return mh.data.extreme(path, **arguments)  # type: ignore[arg-type]


def written(sample: Sample, form: str, space: str, first: int = 0) -> str:
    labels, features = sample
    words = [",".join(str(label + first) for label in labels)] if labels else []
    words += [f"{feature + first}:{form.format(value)}" for feature, value in features.items()]
    return space.join(words)


def samples_of(source: ExtremeSource) -> list[Sample]:
    found: list[Sample] = []
    for number in range(len(source)):
        features, labels = source.fetch(np.array([number]), seed=0)
        pairs = zip(features.columns.tolist(), features.values.tolist(), strict=True)
        found.append((labels.columns.tolist(), dict(pairs)))
    return found


def as_floats(form: str, samples: list[Sample]) -> list[Sample]:
    """What another reader makes of the text: Python's."""
    return [
        (
            sorted(labels),
            {k: float(np.float32(form.format(features[k]))) for k in sorted(features)},
        )
        for labels, features in samples
    ]


@given(st.lists(SAMPLES, min_size=1, max_size=12), FORMS, SPACES, st.data(), st.booleans())
def test_what_is_written_comes_back(
    samples: list[Sample], form: str, space: str, data: st.DataObject, zipped: bool
) -> None:
    first = data.draw(st.integers(0, 1))
    text = "".join(written(s, form, space, first) + data.draw(ENDS) for s in samples)
    if data.draw(st.booleans()):
        text = f"{len(samples)} {FEATURES} {LABELS}\n{text}"
    content = text.encode()
    source = read(
        gzip.compress(content) if zipped else content,
        features=FEATURES,
        labels=LABELS,
        first_feature=first,
        first_label=first,
        header=text.startswith(f"{len(samples)} {FEATURES} {LABELS}\n"),
    )
    assert samples_of(source) == as_floats(form, samples)
    assert source.features.width == FEATURES
    assert source.report.skipped == source.report.repeated == 0


BROKEN = st.sampled_from(
    [
        "x",
        "1,",
        ",1",
        "1,,2",
        "30",
        "-1",
        "1 50:1",
        "1 2",
        "1 2:",
        "1 :2",
        "1 2:x",
        "1 2:nan",
        "1 2:1e99",
        "1 2:1:1",
        "1,2;3 4:5",
        "1 2:1 3:2 4",
        "1e3 2:1",
        "1 2:--1",
        "1 2:.",
        "\x00",
    ]
)


@given(st.lists(st.one_of(SAMPLES, BROKEN), min_size=1, max_size=30))
def test_broken_lines_are_named_and_the_others_read(lines: list[Sample | str]) -> None:
    texts = [line if isinstance(line, str) else written(line, "{!r}", " ") for line in lines]
    content = "".join(text + "\n" for text in texts).encode()
    broken = [number for number, line in enumerate(lines, 1) if isinstance(line, str)]
    whole = [line for line in lines if not isinstance(line, str)]
    sizes: dict[str, object] = {"features": FEATURES, "labels": LABELS, "header": False}
    if broken:
        with pytest.raises(DataError, match=f"line {broken[0]}: "):
            read(content, **sizes)
    if not whole:
        with pytest.raises(DataError, match=f"line {broken[0]}: "):
            read(content, bad_lines="skip", **sizes)
        return
    source = read(content, bad_lines="skip", **sizes)
    assert [line for line, _ in source.report.first_skipped] == broken
    assert samples_of(source) == as_floats("{!r}", whole)


ALPHABET = st.sampled_from(list(b"0123456789,:. \t\r\n#+-eEnaif\x00\xff\x1f\x8bPK"))


@given(st.lists(ALPHABET, max_size=200).map(bytes), st.sampled_from(["raise", "skip"]))
def test_random_bytes_are_samples_or_a_data_error(content: bytes, bad_lines: str) -> None:
    try:
        source = read(content, bad_lines=bad_lines)
    except DataError:
        return
    report = source.report
    assert len(source) == report.samples > 0
    assert report.samples + report.skipped + report.blank <= report.lines
    for rows in (source.features, source.labels):
        counts = rows.counts
        assert int(counts.sum()) == len(rows.columns)
        assert bool(((rows.columns >= 0) & (rows.columns < rows.width)).all())
    assert source.features.values is not None
    assert bool(source.features.values.isfinite().all())


@given(st.lists(SAMPLES, min_size=1, max_size=8), st.data())
def test_one_damaged_byte_never_crashes(samples: list[Sample], data: st.DataObject) -> None:
    content = bytearray("".join(written(s, "{!r}", " ") + "\n" for s in samples).encode())
    content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        source = read(bytes(content), features=FEATURES, labels=LABELS, bad_lines="skip")
    except DataError:
        return
    # A byte touches one line, or joins two, or cuts one in two.
    assert len(samples) - 2 <= len(source) <= len(samples) + 1
