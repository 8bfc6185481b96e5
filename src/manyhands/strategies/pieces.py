"""Pieces of an epoch: a few hundred samples, cut into batches, whichever worker trains on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from manyhands.data.prefetch import Request
from manyhands.data.source import Indices
from manyhands.strategies.strategy import TrainingJob


@dataclass(frozen=True, slots=True)
class PieceRequest(Request):
    """A request for a piece that remembers which piece it is."""

    epoch: int
    piece: int


def piece_samples(job: TrainingJob) -> int:
    """Samples in a piece: whole batches, a few hundred samples where batches are small."""
    if not job.source.sliceable:
        return job.batch_size
    return max(1, job.piece_samples // job.batch_size) * job.batch_size


def pieces_per_epoch(job: TrainingJob) -> int:
    """Pieces that an epoch is cut into."""
    return -(-job.samples_per_epoch // piece_samples(job))


def piece_request(job: TrainingJob, order: Indices, epoch: int, piece: int) -> PieceRequest:
    """What to fetch for a piece; `order` is the epoch's order of samples."""
    size = piece_samples(job)
    indices = order[: job.samples_per_epoch][piece * size : (piece + 1) * size]
    return PieceRequest(indices, job.piece_seed(epoch, piece), epoch, piece)


def first_batch(job: TrainingJob, piece: int) -> int:
    """The number within its epoch of a piece's first batch."""
    return piece * (piece_samples(job) // job.batch_size)


def part_of(batches: Any, start: int, stop: int, *, whole: bool) -> Any:
    """The samples from `start` to `stop` of a fetched piece, as views."""
    return batches if whole else tuple(tensor[start:stop] for tensor in batches)
