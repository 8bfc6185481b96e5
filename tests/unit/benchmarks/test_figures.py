"""What the benchmarks make of their measurements: best peer, aim, bytes, mean accuracy."""

from __future__ import annotations

import pytest
import torch

from benchmarks import mnist_accuracy, replica_accuracy, server_node, trainer_node, update_kernels
from benchmarks.contestants.node_peers import Cell
from benchmarks.contestants.ours import whole_pieces
from benchmarks.contestants.peers import PEERS, TUNED
from benchmarks.harness.rounds import Rounds


def rounds_of(**rates: float) -> Rounds:
    return Rounds({**dict.fromkeys(PEERS, (1.0,)), **{n: (r,) for n, r in rates.items()}})


def test_a_trainer_is_compared_with_the_best_of_the_four_peers() -> None:
    measured = rounds_of(ours=30.0, ddp_gloo=15.0, hogwild_tuned=40.0)

    figures = trainer_node.figures("mnist", 64, measured)

    assert figures["best_peer"] == "ddp_gloo"  # the tuned one is reported, and is not a peer
    assert figures["ratio"]["median"] == 2.0
    assert figures["ratios"][TUNED]["median"] == 0.75
    assert (figures["aim"], figures["met"]) == (1.5, True)


@pytest.mark.parametrize(("batch", "aim"), [(1, 3.0), (8, 2.0), (32, 1.0), (64, 1.5), (256, 1.0)])
def test_an_aim_belongs_to_a_batch_size(batch: int, aim: float) -> None:
    figures = trainer_node.figures("mnist", batch, rounds_of(ours=aim - 0.01))

    assert (figures["aim"], figures["met"]) == (aim, False)


def test_an_epoch_of_ours_is_whole_pieces_within_the_data() -> None:
    assert whole_pieces(1000.0, 512, least=1) == 1024
    assert whole_pieces(1.0, 512, least=3) == 1536
    assert whole_pieces(1e9, 512, least=1) == 60_000 // 512 * 512


@pytest.mark.parametrize(
    ("kernel", "floats_moved"),
    [("sgd", 3), ("sgd momentum", 5), ("adagrad", 5), ("adam", 7), ("adamw", 7)],
)
def test_an_update_moves_what_it_must_read_and_write(kernel: str, floats_moved: int) -> None:
    assert update_kernels.KERNELS[kernel].bytes_moved(100) == 400 * floats_moved


@pytest.mark.parametrize("name", update_kernels.KERNELS)
def test_kernels_and_their_peers_do_the_same_update(name: str) -> None:
    kernel = update_kernels.KERNELS[name]
    calls = []
    for variant in (None, *update_kernels.PEERS):
        torch.manual_seed(0)
        calls.append(update_kernels.contestant(kernel, 64, variant))

    for call in calls:
        call.step()

    ours, *peers = (torch.cat([weight.detach() for weight in call.weights]) for call in calls)
    for peer in peers:
        torch.testing.assert_close(ours, peer)


def test_accuracy_is_summarised_over_the_seeds() -> None:
    finals = [("hogwild", 99.6), ("synchronous", 99.1), ("hogwild", 99.8)]
    runs = [mnist_accuracy.Run(name, 0, (final,), final, 1.0) for name, final in finals]

    figures = mnist_accuracy.figures(runs, "hogwild")

    assert figures["accuracy"] == [99.6, 99.8]
    assert (figures["mean"], figures["low"], figures["high"]) == (99.7, 99.6, 99.8)


def test_a_server_is_compared_with_ps_lite_where_it_takes_part() -> None:
    rates = {"tcp": 1.2e9, "same_machine": 3e9, "socket": 1.5e9, "ps_lite": 1e9}
    measured = server_node.Measured(Rounds({name: (rate,) for name, rate in rates.items()}))

    figures = server_node.figures(Cell("push", 1 << 20, 16), measured)

    assert figures["parameters_per_s"]["tcp"] == 300_000_000
    assert figures["ratios"]["tcp"]["socket"]["median"] == 0.8
    assert figures["met"] == {"tcp": False, "same_machine": True}  # 1.3 and 2 times ps-lite


def test_a_server_has_no_aim_without_ps_lite() -> None:
    measured = server_node.Measured(Rounds({"tcp": (1.0,), "same_machine": (1.0,)}))

    assert "met" not in server_node.figures(Cell("pull", 4096, 1), measured)


def test_no_seed_is_begun_that_would_end_too_late() -> None:
    runs = [replica_accuracy.Run(replicas, 0, (), 99.0, 100.0) for replicas in (1, 2, 4)]
    assert replica_accuracy.has_time([], 0, minutes=0.0)  # one is trained in any case
    assert replica_accuracy.has_time(runs, 1, minutes=10.0)
    assert not replica_accuracy.has_time(runs, 1, minutes=9.9)
