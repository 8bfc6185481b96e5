"""However servers write and tidy up in one store, with old knowledge of it, the newest stays."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.parameter_server.store.catalogue import live, records_of, tidying
from manyhands.parameter_server.store.segment_file import Cut, Record, Segment

ROWS = 4
CUTS = {  # an era's way to cut the one parameter
    1: [(0, 2), (2, 2)],
    2: [(0, 1), (1, 3)],
    3: [(0, 2), (2, 2)],
}
positions = st.tuples(st.integers(1, 3), st.integers(0, 1), st.integers(1, 3), st.integers(1, 9))


def segment(name: int, written: list[tuple[int, int, int, int]], era: int) -> Segment:
    records = []
    for _, which, lease, version in written:
        first_row, rows = CUTS[era][which]
        cut = Cut("w", (ROWS, 5), "sgd", first_row, rows, 5)
        records.append(Record(cut, lease, version, version, 1, 0, 100, 0))
    return Segment(Path(f"{era:06d}-{name:08d}.segment"), era, "", 0.0, tuple(records))


def painted(segments: list[Segment]) -> list[tuple[int, int, int] | None]:
    """Which record each row is of, when all of them are laid over one another in order."""
    rows: list[tuple[int, int, int] | None] = [None] * ROWS
    for one in sorted(records_of(segments), key=lambda one: one.age):
        cut = one.record.cut
        rows[cut.first_row : cut.first_row + cut.rows] = [one.position] * cut.rows
    return rows


steps = st.lists(
    st.tuples(
        st.integers(0, 2),  # the server
        st.sampled_from(["write", "look", "tidy"]),
        st.lists(positions, min_size=1, max_size=3),
    ),
    max_size=40,
)


@given(steps)
@settings(max_examples=300, deadline=None)
def test_the_newest_of_every_row_is_never_removed(
    steps: list[tuple[int, str, list[tuple[int, int, int, int]]]],
) -> None:
    ever: list[Segment] = []
    disk: dict[Path, Segment] = {}
    known: list[dict[Path, Segment]] = [{}, {}, {}]
    for number, (server, step, written) in enumerate(steps):
        if step == "write":
            fresh = segment(number, written, era=written[0][0])
            ever.append(fresh)
            disk[fresh.path] = known[server][fresh.path] = fresh
        elif step == "look":
            known[server] = dict(disk)
        else:
            for path in tidying(known[server].values(), spare_bytes=0).superseded:
                disk.pop(path, None)
                known[server].pop(path)
        assert painted(list(disk.values())) == painted(ever)
        assert painted_live(list(disk.values())) == painted(ever)


def painted_live(segments: list[Segment]) -> list[tuple[int, int, int] | None]:
    rows: list[tuple[int, int, int] | None] = [None] * ROWS
    for one in live(records_of(segments)):
        cut = one.record.cut
        rows[cut.first_row : cut.first_row + cut.rows] = [one.position] * cut.rows
    return rows
