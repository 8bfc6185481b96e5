"""The index of a wide layer's neurons: tables, refreshing them, and choosing out of them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from manyhands.kernels import LshIndex

Rows = npt.NDArray[np.int64]

DWTA: dict[str, Any] = {"family": "dwta", "hashes": 3, "bin": 8}
ALL_FAMILIES: dict[str, dict[str, Any]] = {
    "simhash": {"family": "simhash", "hashes": 8},
    "wta": {"family": "wta", "hashes": 3, "bin": 8},
    "dwta": DWTA,
    "minhash": {"family": "minhash", "hashes": 3, "bin": 16, "density": 0.25},
}


def index(
    neurons: int, width: int = 32, *, tables: int = 12, bucket: int = 2000, **settings: Any
) -> LshIndex:
    return LshIndex(neurons, width, tables=tables, bucket=bucket, **{**DWTA, "seed": 1, **settings})


def weights(neurons: int, width: int = 32, seed: int = 0) -> torch.Tensor:
    return torch.randn(neurons, width, generator=torch.Generator().manual_seed(seed))


def shared(
    tables: LshIndex, x: torch.Tensor, labels: list[list[int]] | None = None, **how: Any
) -> Rows:
    how = {"choice": "topk", "limit": 100, "floor": 0, "votes": 2, "seed": 7, **how}
    return tables.choose_shared(x, *compressed(labels), **how)


def each(
    tables: LshIndex, x: torch.Tensor, labels: list[list[int]] | None = None, **how: Any
) -> list[Rows]:
    how = {"choice": "topk", "limit": 100, "floor": 0, "votes": 2, "seed": 7, **how}
    offsets, rows = tables.choose_each(x, *compressed(labels), **how)
    assert offsets[0] == 0
    assert offsets[-1] == len(rows)
    return [rows[a:b] for a, b in pairwise(offsets)]


def compressed(labels: list[list[int]] | None) -> tuple[Any, Any]:
    if labels is None:
        return None, None
    counts = [0, *(len(row) for row in labels)]
    flat = [label for row in labels for label in row]
    return np.cumsum(counts), np.array(flat, np.int32)


def votes(tables: LshIndex, weight: torch.Tensor, x: torch.Tensor) -> Rows:
    """How many tables find each neuron, for each sample: [B, neurons]."""
    found = tables.codes(x)[:, None, :] == tables.codes(weight)[None, :, :]
    return np.asarray(found.sum(2), np.int64)


# --- tables


@pytest.mark.parametrize("filling", ["fifo", "reservoir"])
@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_tables_hold_every_neuron_where_buckets_are_large_enough(family: str, filling: str) -> None:
    weight = weights(1500)
    tables = index(1500, filling=filling, **ALL_FAMILIES[family])
    tables.build(weight, 2)
    occupancy = tables.occupancy()
    assert occupancy["held"] == 1500 * 12
    assert occupancy["dropped"] == 0
    # Its own weight finds a neuron in all tables.
    found = each(tables, weight, choice="threshold", votes=12, limit=1500)
    assert all(neuron in rows for neuron, rows in enumerate(found))


def test_a_full_bucket_keeps_the_newest() -> None:
    tables = index(1000, bucket=30)
    tables.build(torch.ones(1000, 32))
    assert shared(tables, torch.ones(1, 32), limit=1000).tolist() == list(range(970, 1000))
    occupancy = tables.occupancy()
    assert occupancy["held"] == 12 * 30
    assert occupancy["dropped"] == 12 * 970
    assert occupancy["largest_bucket"] == 1000
    assert occupancy["full_buckets"] == 12
    assert occupancy["empty_buckets"] == 12 * (occupancy["buckets"] - 1)
    assert occupancy["slots"] == 12 * occupancy["buckets"] * 30


def test_a_reservoir_keeps_a_fair_sample() -> None:
    kept = []
    for seed in range(40):
        tables = index(1000, bucket=30, tables=1, filling="reservoir", seed=seed)
        tables.build(torch.ones(1000, 32))
        rows = shared(tables, torch.ones(1, 32), limit=1000)
        assert len(rows) == 30
        kept.append(rows)
    quarters, _ = np.histogram(np.concatenate(kept), bins=4, range=(0, 1000))
    assert quarters.sum() == 1200
    assert quarters.min() > 220, quarters
    assert quarters.max() < 380, quarters


@pytest.mark.parametrize("family", ALL_FAMILIES)
@pytest.mark.parametrize("share", [0.1, 0.9])
def test_a_refresh_equals_tables_made_anew(family: str, share: float) -> None:
    before = weights(2000)
    changed = torch.nonzero(torch.rand(2000) < share).flatten()
    mixed = before.clone()
    mixed[changed] = before[changed.flip(0)]  # the mean stays, from which SimHash sees them

    tables = index(2000, **ALL_FAMILIES[family])
    tables.build(before, 2)
    tables.mark_changed(changed)
    assert tables.changed == len(changed)
    assert tables.refresh(mixed, 2) == len(changed)
    assert tables.changed == 0
    anew = index(2000, **ALL_FAMILIES[family])
    anew.build(mixed)

    assert tables.occupancy() == anew.occupancy()
    x = weights(50, seed=2)
    for mine, theirs in zip(each(tables, x, limit=2000), each(anew, x, limit=2000), strict=True):
        assert np.array_equal(mine, theirs)


def test_many_marked_neurons_of_which_few_moved_are_refreshed_as_well() -> None:
    before = weights(2000)
    changed = torch.arange(0, 2000, 40)
    mixed = before.clone()
    mixed[changed] = before[changed.flip(0)]
    tables, anew = index(2000), index(2000)
    tables.build(before, 2)
    tables.mark_changed(torch.arange(2000))
    assert tables.refresh(mixed, 2) == 2000
    anew.build(mixed)
    assert tables.occupancy() == anew.occupancy()
    x = weights(50, seed=2)
    for mine, theirs in zip(each(tables, x, limit=2000), each(anew, x, limit=2000), strict=True):
        assert np.array_equal(mine, theirs)


def test_a_refresh_looks_at_marked_neurons_only() -> None:
    weight = weights(400)
    tables = index(400)
    tables.build(weight)
    assert tables.refresh(weights(400, seed=1)) == 0
    found = each(tables, weight, choice="threshold", votes=12, limit=400)
    assert all(neuron in rows for neuron, rows in enumerate(found))


def test_neurons_may_move_often() -> None:
    tables = index(300, bucket=8)
    tables.build(weights(300))
    for seed in range(1, 30):
        tables.mark_changed(torch.randint(300, (100,)).unique())
        tables.refresh(weights(300, seed=seed))
        occupancy = tables.occupancy()
        assert occupancy["held"] + occupancy["dropped"] == 300 * 12
    found = shared(tables, weights(300, seed=99), limit=300)
    assert len(found) > 250


def test_new_functions_are_those_of_their_seed() -> None:
    weight, x = weights(800), weights(20, seed=1)
    tables, other = index(800), index(800, seed=5)
    tables.build(weight)
    other.build(weight)
    before = tables.codes(x)
    tables.mark_changed(torch.tensor([1, 2]))
    tables.rebuild(weight, 5, 2)
    assert tables.changed == 0
    assert not np.array_equal(tables.codes(x), before)
    assert np.array_equal(tables.codes(x), other.codes(x))
    assert np.array_equal(shared(tables, x), shared(other, x))
    # A refresh keeps the functions that were drawn last.
    tables.mark_changed(torch.arange(800))
    tables.refresh(weight)
    assert np.array_equal(tables.codes(x), other.codes(x))


# --- choosing


def test_those_with_most_votes_are_chosen_for_each_sample() -> None:
    weight, x = weights(500), weights(20, seed=1)
    tables = index(500)
    tables.build(weight)
    for rows, have in zip(each(tables, x, limit=40), votes(tables, weight, x), strict=True):
        chosen = have[rows]
        assert len(rows) == min(40, (have > 0).sum())
        left = np.delete(have, rows)
        assert chosen.min() >= left.max()
        assert np.all(np.diff(rows) > 0)


@pytest.mark.parametrize("limit", [1, 30, 150, 400, 500])
def test_those_with_most_votes_are_chosen_for_a_batch(limit: int) -> None:
    weight, x = weights(500), weights(70, seed=1)
    tables = index(500)
    tables.build(weight)
    have = votes(tables, weight, x).sum(0)
    rows = shared(tables, x, limit=limit)
    assert len(rows) == min(limit, (have > 0).sum())
    assert np.all(np.diff(rows) > 0)
    if len(rows) < 500:
        assert have[rows].min() >= np.delete(have, rows).max()


def test_votes_of_very_many_samples_stop_at_the_highest_number() -> None:
    weight = weights(100)
    tables = index(100, tables=40)
    tables.build(weight)
    x = weight[:1].repeat(3000, 1)  # 120,000 votes for neuron 0
    x[0] = weight[1]
    for threads in (1, 3):
        assert 0 in shared(tables, x, limit=1, threads=threads)


@pytest.mark.parametrize("needed", [1, 3, 6])
def test_a_threshold_asks_for_votes(needed: int) -> None:
    weight = weights(500)
    x = weight[:20] + 0.3 * weights(20, seed=1)
    tables = index(500)
    tables.build(weight)
    have = votes(tables, weight, x)
    found = each(tables, x, choice="threshold", votes=needed, limit=500)
    for rows, of_sample in zip(found, have, strict=True):
        assert rows.tolist() == np.nonzero(of_sample >= needed)[0].tolist()
    rows = shared(tables, x, choice="threshold", votes=needed, limit=500)
    assert rows.tolist() == np.nonzero(have.sum(0) >= needed)[0].tolist()
    assert len(shared(tables, x, choice="threshold", votes=needed, limit=7)) == 7


def test_vanilla_stops_when_enough_are_found() -> None:
    weight, x = weights(500), weights(20, seed=1)
    tables = index(500)
    tables.build(weight)
    have = votes(tables, weight, x)
    for rows, of_sample in zip(each(tables, x, choice="vanilla", limit=9), have, strict=True):
        assert len(rows) == min(9, (of_sample > 0).sum())
        assert np.all(of_sample[rows] > 0)
    rows = shared(tables, x, choice="vanilla", limit=40)
    assert len(rows) == 40
    assert np.all(have.sum(0)[rows] > 0)
    everything = shared(tables, x, choice="vanilla", limit=500)
    assert everything.tolist() == np.nonzero(have.sum(0))[0].tolist()


def test_equal_votes_favour_nobody() -> None:
    tables = index(1000, bucket=1000, tables=2)
    tables.build(torch.ones(1000, 32))
    x = torch.ones(3, 32)
    chosen = [rows for seed in range(60) for rows in each(tables, x, limit=100, seed=seed)]
    together = [shared(tables, x, limit=100, seed=seed) for seed in range(200)]
    for rows in (np.concatenate(chosen), np.concatenate(together)):
        tenths, _ = np.histogram(rows, bins=10, range=(0, 1000))
        assert tenths.min() > 0.8 * tenths.mean()
        assert len(np.unique(rows)) == 1000


@pytest.mark.parametrize("choice", ["topk", "threshold", "vanilla"])
def test_labels_are_always_active_and_random_neurons_fill_up(choice: str) -> None:
    tables = index(900)
    tables.build(weights(900))
    x = weights(4, seed=1)
    labels = [[3, 880], [], [5], [3, 4]]
    rows = shared(tables, x, labels, choice=choice, limit=20, floor=200)
    assert {3, 4, 5, 880} <= set(rows.tolist())
    assert len(rows) == len(set(rows.tolist())) == 200
    for found, own in zip(
        each(tables, x, labels, choice=choice, limit=20, floor=100), labels, strict=True
    ):
        assert set(own) <= set(found.tolist())
        assert len(found) == 100
        assert np.all(np.diff(found) > 0)
    assert shared(tables, x, labels, choice=choice, limit=0).tolist() == [3, 4, 5, 880]
    assert len(shared(tables, x, choice=choice, limit=0, floor=10_000)) == 900


def test_random_neurons_differ_with_the_seed() -> None:
    tables = index(5000)
    tables.build(weights(5000))
    x = weights(2, seed=1)
    drawn = [shared(tables, x, limit=0, floor=100, seed=seed) for seed in range(50)]
    assert len(np.unique(np.concatenate(drawn))) > 2500
    first, second = each(tables, x, limit=0, floor=100)
    assert len(np.intersect1d(first, second)) < 20


@pytest.mark.parametrize("choice", ["topk", "threshold", "vanilla"])
@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_any_number_of_threads_gives_the_same_rows(family: str, choice: str) -> None:
    weight, x = weights(3000), weights(45, seed=1)
    labels = [[i, 7 * i] for i in range(45)]
    tables = index(3000, bucket=6, filling="reservoir", **ALL_FAMILIES[family])
    tables.build(weight)
    how = {"choice": choice, "limit": 50, "floor": 80}
    expected = shared(tables, x, labels, **how), each(tables, x, labels, **how)
    for threads in (2, 3, 7):
        other = index(3000, bucket=6, filling="reservoir", **ALL_FAMILIES[family])
        other.build(weight, threads)
        assert np.array_equal(shared(other, x, labels, threads=threads, **how), expected[0])
        apart = each(other, x, labels, threads=threads, **how)
        for mine, theirs in zip(apart, expected[1], strict=True):
            assert np.array_equal(mine, theirs)


def test_a_batch_without_samples() -> None:
    tables = index(50)
    tables.build(weights(50))
    none = torch.empty(0, 32)
    assert shared(tables, none, [], floor=5).shape == (5,)
    assert each(tables, none, []) == []


# --- shapes of all kinds


@pytest.mark.parametrize("family", ALL_FAMILIES)
@pytest.mark.parametrize(
    ("neurons", "width"), [(1, 1), (1, 5), (2, 3), (31, 7), (33, 100), (70, 1)]
)
def test_small_and_odd_layers(family: str, neurons: int, width: int, simd: str) -> None:
    tables = LshIndex(neurons, width, tables=40, bucket=100, **ALL_FAMILIES[family])
    weight = weights(neurons, width)
    tables.build(weight, 3)
    assert tables.occupancy()["held"] == 40 * neurons
    found = each(tables, weight, limit=neurons, threads=2)
    assert all(neuron in rows for neuron, rows in enumerate(found))
    tables.mark_changed(torch.arange(neurons))
    assert tables.refresh(weights(neurons, width, seed=1), 2) == neurons


@pytest.mark.parametrize("value", [0.0, 1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_equal_weights_of_any_kind(family: str, value: float) -> None:
    tables = index(500, bucket=30, **ALL_FAMILIES[family])
    tables.build(torch.full((500, 32), value), 2)
    x = torch.full((3, 32), value)
    assert len(shared(tables, x, limit=500)) == 30
    tables.mark_changed(torch.arange(100))
    weight = torch.full((500, 32), value)
    weight[:100] = weights(100)
    assert tables.refresh(weight) == 100


def test_memory_is_bounded() -> None:
    tables = LshIndex(100_000, 8, family="dwta", hashes=5, tables=20, bucket=30)
    tables.build(weights(100_000, 8))
    shared(tables, weights(5, 8), threads=2)
    # 4 slots of 4 bytes and a state, and 2 bytes of code, a neuron and table; scratch.
    assert tables.memory_bytes < 100_000 * 20 * (4 * 4 * 32 / 30 + 2) + 2_000_000


def test_one_neuron_in_a_thousand_tables() -> None:
    tables = LshIndex(1, 16, tables=1000, bucket=1, **DWTA)
    tables.build(weights(1, 16), 2)
    assert shared(tables, weights(1, 16), limit=5).tolist() == [0]


# --- beside each other


def test_choosing_goes_on_beside_refresh_and_rebuild() -> None:
    weight, x = weights(2000), weights(32, seed=1)
    tables = index(2000, bucket=14)
    tables.build(weight)
    done = threading.Event()
    failures: list[BaseException] = []

    def change() -> None:
        try:
            for seed in range(40):
                tables.mark_changed(torch.arange(seed, 2000, 7))
                tables.refresh(weights(2000, seed=seed))
                if seed % 8 == 0:
                    tables.rebuild(weight, seed)
        except BaseException as error:
            failures.append(error)
        finally:
            done.set()

    thread = threading.Thread(target=change)
    thread.start()
    rounds = 0
    while not done.is_set() or rounds < 3:
        rows = shared(tables, x, [[1]] * 32, floor=150, threads=2)
        assert rows[0] >= 0
        assert rows[-1] < 2000
        assert 150 <= len(rows) <= 151
        for found in each(tables, x, threads=2):
            assert len(found) <= 100
        rounds += 1
    thread.join(60)
    assert not failures
    assert tables.occupancy()["held"] + tables.occupancy()["dropped"] == 2000 * 12


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_goes_on_choosing() -> None:
    script = """
        import os, torch
        from manyhands.kernels import LshIndex
        tables = LshIndex(500, 16, hashes=3, tables=10, bucket=30)
        tables.build(torch.randn(500, 16), 2)
        how = dict(choice="topk", limit=50, floor=60, votes=2, seed=1, threads=3)
        x = torch.randn(8, 16)
        before = tables.choose_shared(x, None, None, **how).tolist()
        child = os.fork()
        if child == 0:
            same = tables.choose_shared(x, None, None, **how).tolist() == before
            tables.refresh(torch.randn(500, 16), 2)
            del tables
            os._exit(0 if same else 3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert tables.choose_shared(x, None, None, **how).tolist() == before
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, timeout=60)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_too_few_threads_are_an_error_and_no_end() -> None:
    script = """
        import resource, torch
        from manyhands.kernels import LshIndex
        tables = LshIndex(500, 16, hashes=3, tables=10, bucket=30)
        tables.build(torch.randn(500, 16))
        x = torch.randn(8, 16)
        how = dict(choice="topk", limit=50, floor=60, votes=2, seed=1)
        before = tables.choose_shared(x, None, None, **how, threads=1).tolist()
        pages = int(open("/proc/self/statm").read().split()[0])
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 2**26, hard))
        try:
            tables.choose_shared(x, None, None, **how, threads=1000)
        except (RuntimeError, MemoryError):
            pass
        else:
            raise SystemExit("a thousand threads in 64 MB?")
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
        assert tables.choose_shared(x, None, None, **how, threads=3).tolist() == before
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, timeout=60)


# --- refusals


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"neurons": 0}, "number of neurons is 0; expected 1 to"),
        ({"width": 0}, "width is 0; expected 1 to"),
        ({"hashes": 0}, "number of hashes is 0; expected 1 to 32"),
        ({"hashes": 12}, "code is 36 bits long; expected at most 32 bits"),
        ({"tables": 0}, "number of tables is 0; expected 1 to 4096"),
        ({"bucket": 0}, "bucket size is 0; expected 1 to 32768"),
        ({"bin": 1}, "bin is 1; expected 2 to 64"),
        ({"bin": 65}, "bin is 65; expected 2 to 64"),
        ({"family": "simhash", "density": 0.0}, "density is 0.000000; expected"),
        ({"family": "simhash", "density": float("nan")}, "density is nan; expected"),
        ({"family": "md5"}, "hash family is 'md5'; expected 'simhash', 'wta', 'dwta' or 'minhash'"),
        ({"filling": "lifo"}, "filling of buckets is 'lifo'; expected 'fifo' or 'reservoir'"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], sentence: str) -> None:
    settings = {"neurons": 10, "width": 20, "hashes": 3, "tables": 2, "bucket": 4, **settings}
    with pytest.raises(ValueError, match=sentence):
        LshIndex(**settings)


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ({"choice": "best"}, "choice is 'best'; expected 'vanilla', 'topk' or 'threshold'"),
        ({"limit": -1}, "limit is -1; expected 0 or more"),
        ({"floor": -1}, "floor is -1; expected 0 or more"),
        ({"votes": 0}, "votes needed are 0; expected 1 or more"),
        ({"threads": 0}, "number of threads is 0; expected 1 to 1024"),
        ({"labels": [[50]]}, "A label is 50; expected 0 to 49"),
        ({"labels": [[-1]]}, "A label is -1; expected 0 to 49"),
        ({"labels": [[1], [2]]}, "There are 3 offsets; expected 2, one more than rows"),
    ],
)
def test_bad_questions_are_refused(how: dict[str, Any], sentence: str) -> None:
    tables = index(50)
    tables.build(weights(50))
    for ask in (shared, each):
        with pytest.raises(ValueError, match=sentence):
            ask(tables, weights(1), **{"labels": None, **how})


def test_wrong_shapes_are_refused() -> None:
    tables = index(50)
    with pytest.raises(ValueError, match="The index holds no neurons yet"):
        shared(tables, weights(1))
    with pytest.raises(ValueError, match="The index holds no neurons yet"):
        tables.refresh(weights(50))
    for change in (tables.build, tables.refresh, lambda w: tables.rebuild(w, 1)):
        with pytest.raises(ValueError, match=r"has shape \(49, 32\); expected \(50, 32\)"):
            change(weights(49))
    assert not tables.built
    tables.build(weights(50))
    assert tables.built
    with pytest.raises(ValueError, match=r"inputs have shape \(1, 31\); expected \(N, 32\)"):
        shared(tables, weights(1, 31))
    with pytest.raises(ValueError, match="Labels came without offsets"):
        tables.choose_shared(
            weights(1),
            None,
            np.array([1], np.int32),
            choice="topk",
            limit=1,
            floor=1,
            votes=1,
            seed=1,
        )
    with pytest.raises(ValueError, match="A row number is 50; expected 0 to 49"):
        tables.mark_changed(np.array([3, 50]))
    with pytest.raises(TypeError):
        tables.build(weights(50).double())
    with pytest.raises(ValueError, match="expected rows in one piece each"):
        tables.build(weights(32, 50).T)


def inputs_that_agree(samples: int, seed: int = 5) -> torch.Tensor:
    """As behind a ReLU: what they have in common is larger than what tells them apart."""
    return 3.0 + 0.3 * weights(samples, seed=seed)


def test_simhash_sees_inputs_from_their_mean() -> None:
    weight = weights(4000)
    tables = index(4000, tables=50, **ALL_FAMILIES["simhash"])
    tables.build(weight)
    far_away = weights(256) - 50.0
    tables.see_inputs(far_away)
    x = inputs_that_agree(64)
    # The large outputs beside what all inputs have in common.
    best = ((x - x.mean(0)) @ weight.T).topk(10).indices.numpy()

    def found() -> float:
        rows = each(tables, x, limit=100)
        return float(np.mean([np.isin(b, r).mean() for b, r in zip(best, rows, strict=True)]))

    blind = found()
    for _ in range(200):
        tables.see_inputs(inputs_that_agree(256, seed=6))
    assert found() > 5 * blind


def test_inputs_that_are_not_finite_do_not_move_the_mean() -> None:
    tables = index(500, **ALL_FAMILIES["simhash"])
    tables.build(weights(500))
    x = inputs_that_agree(20)
    tables.see_inputs(x)
    before = shared(tables, x).tolist()
    tables.see_inputs(torch.full((4, 32), torch.nan))
    assert shared(tables, x).tolist() == before


@pytest.mark.parametrize("family", ALL_FAMILIES)
@pytest.mark.parametrize("threads", [1, 3])
def test_the_hardest_of_each_sample_are_found(family: str, threads: int) -> None:
    weight, bias, x = weights(3000), torch.randn(3000), weights(40, seed=3)
    tables = index(3000, tables=20, **ALL_FAMILIES[family])
    tables.build(weight)
    tables.see_inputs(x)
    how: dict[str, Any] = {"weight": weight, "bias": bias, "limit": 0, "threads": threads}
    outputs = torch.addmm(bias, x, weight.T)
    rows = shared(tables, x, hardest=2, **how)
    assert 2 <= len(rows) <= 80
    drawn = np.random.default_rng(0).choice(3000, 100)
    hard = [outputs[:, row].max().item() for row in rows]
    assert np.mean(hard) > outputs[:, drawn].max(0).values.mean().item() + 0.5


def test_a_label_is_not_hard_and_is_there_anyway() -> None:
    weight = weights(3000)
    x = weight[[7, 8]] * 2
    tables = index(3000, tables=20, hashes=2)
    tables.build(weight)
    how: dict[str, Any] = {"weight": weight, "limit": 0, "hardest": 1}
    assert {7, 8} <= set(shared(tables, x, **how).tolist())  # their own directions
    labelled = shared(tables, x, [[7], [8]], **how).tolist()
    assert {7, 8} < set(labelled)
    assert len(labelled) > 2


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"hardest": -1, "weight": weights(50)}, "hardest are -1"),
        ({"hardest": 1}, "weight is missing"),
        ({"hardest": 1, "weight": weights(49)}, "expected \\(50, 32\\)"),
        ({"hardest": 1, "weight": weights(50), "bias": torch.zeros(49)}, "49 biases"),
    ],
)
def test_the_hardest_need_a_weight(how: dict[str, Any], message: str) -> None:
    tables = index(50)
    tables.build(weights(50))
    with pytest.raises(ValueError, match=message):
        shared(tables, weights(2), **how)
