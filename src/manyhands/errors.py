"""Every exception that Manyhands raises on purpose, split by who must act.

Each message states the value seen, what was expected and what to change. The command line prints
the message alone; a stack trace is for our own mistakes, not for a user's.
"""

from __future__ import annotations

import traceback
from pathlib import Path


class ManyhandsError(Exception):
    """The root of the tree: catch this to catch everything that Manyhands raises on purpose."""


class ConfigError(ManyhandsError):
    """The user must change an argument, a setting or a recipe. Raised before anything starts."""


class ModelError(ConfigError):
    """The user must change the model: it has a part that the chosen strategy can't train."""


class DataError(ManyhandsError):
    """The user must change the data: a file is missing, truncated or not what it claims to be."""


class CheckpointError(ManyhandsError):
    """The user must name another file: a checkpoint is missing, truncated or foreign."""


class TrainingDiverged(ManyhandsError):
    """The user must change the learning rate or look at a batch: the loss is not a number."""

    def __init__(self, message: str, *, epoch: int, step: int, indices: list[int]) -> None:
        super().__init__(message)
        self.epoch = epoch
        self.step = step
        self.indices = indices


class WorkerError(ManyhandsError):
    """The user must look at the cause: a worker failed in their code, or workers keep dying."""


class ServerUnavailable(ManyhandsError):
    """The retry policy must act: a parameter server did not answer within the time allowed."""


class StaleRoute(ManyhandsError):
    """The retry policy must act: the server no longer holds the chunk, or the lease is old."""


class RegistryUnavailable(ManyhandsError):
    """The retry policy must act: the controller's registry did not answer. Servers go on."""


class ProtocolError(ManyhandsError):
    """Nobody must act: the peer is broken, hostile or of another version, and is dropped.

    `refusal` is the number that the peer is told (`messages.Refusal`).
    """

    def __init__(self, message: str, *, refusal: int = 6) -> None:
        super().__init__(message)
        self.refusal = refusal


def in_a_sentence(error: BaseException) -> str:
    """Somebody else's exception: its type, its first line, and the place in the user's code."""
    first_line = (str(error).strip().splitlines() or [""])[0]
    sentence = f"{type(error).__name__}: {first_line}".rstrip(": ")
    ours = str(Path(__file__).parent)
    theirs = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "site-packages" not in frame.filename and not frame.filename.startswith(ours)
    ]
    return f"{sentence} ({theirs[-1].filename}:{theirs[-1].lineno})" if theirs else sentence
