"""The slow link: there for the time of a block, gone afterwards however it ended."""

from __future__ import annotations

import subprocess

import pytest

from benchmarks.harness.native_program import Unavailable
from benchmarks.harness.shaped_link import FAMILY, ShapedLink, _delete, _remove_left_behind


def namespaces() -> str:
    return subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout


@pytest.fixture
def link() -> ShapedLink:
    """A link that can be made here."""
    made = ShapedLink(100)
    try:
        with made:
            return made
    except Unavailable as reason:
        pytest.skip(str(reason))


def test_the_link_is_removed_when_its_block_fails(link: ShapedLink) -> None:
    def fail() -> None:
        with link:
            assert link.a.namespace in namespaces()
            raise ValueError("on purpose")

    with pytest.raises(ValueError, match="on purpose"):
        fail()

    assert link.a.namespace not in namespaces()
    assert link.b.namespace not in namespaces()


def test_what_a_side_sends_crosses_the_link_and_is_counted(link: ShapedLink) -> None:
    send = (
        "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); "
        f"s.sendto(bytes(1000), ('{link.b.address}', 9))"
    )
    with link:
        before = link.carried_bytes()
        subprocess.run([*link.a.prefix, "python3", "-c", send], check=True)
        assert link.carried_bytes() - before > 1000


def test_what_a_killed_run_left_behind_is_removed(link: ShapedLink) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    left = f"{FAMILY}_{ended.pid}_a"
    subprocess.run(["ip", "netns", "add", left], check=True)
    try:
        with link:
            _remove_left_behind()
            assert link.a.namespace in namespaces()  # its owner is alive: this test
        assert left not in namespaces()
    finally:
        _delete(left)


def test_a_link_that_cannot_be_made_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda tool: None)

    with pytest.raises(Unavailable, match="ip was not found"), ShapedLink(100):
        pass
