"""Trouble with the disk is told once, however many servers have it."""

from __future__ import annotations

from manyhands.strategies.downpour_driver.store_watch import StoreWatch

FULL = "The parameters can't be written back to /runs/x/store: No space left on device."


def test_trouble_is_told_once_and_so_is_its_end():
    watch = StoreWatch()
    assert watch.look(0, "") == []
    (note,) = watch.look(0, FULL)
    assert note.warning
    assert note.message.startswith(FULL)
    assert watch.look(0, FULL) == watch.look(1, FULL) == []
    assert watch.look(0, "") == []
    (note,) = watch.look(1, "")
    assert not note.warning
    assert watch.look(1, "") == []


def test_other_trouble_is_told_again():
    watch = StoreWatch()
    watch.look(0, FULL)
    (note,) = watch.look(0, "The directory is gone.")
    assert note.message.startswith("The directory is gone.")
