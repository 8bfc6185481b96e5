"""Checkpoints: the complete state of a training run, from which it can go on.

A checkpoint is a folder that appears whole or not at all:

    checkpoints/epoch-0007/
        model.safetensors  optimizer.safetensors  [averaged.safetensors]
        checkpoint.json    epoch, step and everything else that is not a tensor
        SHA256SUMS         of all of these, as `sha256sum -c` reads it

Saving an epoch again (after a resume from an older state) makes `epoch-0007.1`, never a moment
without a checkpoint. Only safetensors and JSON are read: nothing in the folder can run code.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from manyhands.errors import CheckpointError
from manyhands.run.durable import new_folder, remove_leftovers
from manyhands.run.weights import Tensors, load_weights, reason_of, write_tensors

_NAME = re.compile(r"epoch-(\d{4,})(?:\.(\d+))?")
_SUMS = "SHA256SUMS"
_STATE = "checkpoint.json"
_FORMAT = "manyhands checkpoint 1"


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """What a run needs to go on. `extra` takes what JSON takes, and bytes; tuples become lists."""

    epoch: int
    """How many epochs are done."""
    step: int
    model: Tensors
    optimizer: Tensors
    averaged: Tensors | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def best_weights(self) -> Tensors:
        """What to hand over: the average where there is one, under every name of a tied weight."""
        average = {self.model[name].data_ptr(): t for name, t in (self.averaged or {}).items()}
        return {name: average.get(t.data_ptr(), t) for name, t in self.model.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Restored:
    """A checkpoint read back, and why newer ones (if any) were refused, a sentence each."""

    checkpoint: Checkpoint
    path: Path
    refused: tuple[str, ...]

    @property
    def written_at(self) -> float:
        """When it was written, in seconds since 1970; 0 for one that does not say."""
        return float(self.checkpoint.extra.get("written_at", 0.0))


def save(directory: Path | str, checkpoint: Checkpoint, *, keep: int = 2) -> Path:
    """Add a checkpoint to `directory` and keep the last `keep`. One writer at a time.

    When it can't be written (a full disk), the earlier ones stay as they are.
    """
    folder = Path(directory).absolute()
    state = _encode_state(checkpoint)
    target = _free_name(folder, checkpoint.epoch)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(folder)
        with new_folder(target) as partial:
            _write_files(partial, checkpoint, state)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"The checkpoint {target} could not be written: {reason_of(error)}. "
            f"{_what_is_left(folder)} Free some space or change the permissions, then resume."
        ) from error
    _remove_older(folder, target, keep)
    return target


def load_latest(directory: Path | str) -> Restored:
    """Read the newest checkpoint that is whole; damaged ones are passed over and named."""
    folder = Path(directory)
    refused: list[str] = []
    for path in reversed(_existing(folder)):
        try:
            return Restored(checkpoint=load(path), path=path, refused=tuple(refused))
        except CheckpointError as error:
            refused.append(str(error))
    if refused:
        raise CheckpointError(f"No checkpoint in {folder} is whole. " + " ".join(refused))
    raise CheckpointError(
        f"{folder} holds no checkpoint: the run ended before its first one was written, "
        "or this is another folder. Start the run anew."
    )


def load(path: Path) -> Checkpoint:
    """Read one checkpoint folder after checking every byte of it."""
    sums = _read_sums(path)
    state = _decode_state(path / _STATE, _verified(path, _STATE, sums).read_bytes())
    parts = {part: load_weights(_verified(path, _file(part), sums)) for part in state["tensors"]}
    return Checkpoint(
        epoch=state["epoch"],
        step=state["step"],
        model=parts["model"],
        optimizer=parts["optimizer"],
        averaged=parts.get("averaged"),
        extra=state["extra"],
    )


def _file(part: str) -> str:
    return f"{part}.safetensors"


def _tensor_parts(checkpoint: Checkpoint) -> dict[str, Tensors]:
    parts = {"model": checkpoint.model, "optimizer": checkpoint.optimizer}
    if checkpoint.averaged is not None:
        parts["averaged"] = checkpoint.averaged
    return parts


def _write_files(folder: Path, checkpoint: Checkpoint, state: bytes) -> None:
    for part, tensors in _tensor_parts(checkpoint).items():
        write_tensors(folder / _file(part), tensors)
    (folder / _STATE).write_bytes(state)
    # Read back from the file: workers may still be changing the weights in memory.
    lines = [f"{_digest(file)}  {file.name}\n" for file in sorted(folder.iterdir())]
    (folder / _SUMS).write_text("".join(lines), encoding="ascii")


def _encode_state(checkpoint: Checkpoint) -> bytes:
    state = {
        "format": _FORMAT,
        "epoch": checkpoint.epoch,
        "step": checkpoint.step,
        "tensors": list(_tensor_parts(checkpoint)),
        "extra": checkpoint.extra,
    }
    return json.dumps(state, indent=1, default=_encode_bytes).encode("utf-8")


def _encode_bytes(value: object) -> dict[str, str]:
    if isinstance(value, bytes):
        return {"bytes in hex": value.hex()}
    raise TypeError(f"a checkpoint can't hold {value!r}, a {type(value).__name__}")


def _decode_bytes(value: dict[str, Any]) -> Any:
    return bytes.fromhex(value["bytes in hex"]) if list(value) == ["bytes in hex"] else value


def _decode_state(path: Path, data: bytes) -> Mapping[str, Any]:
    try:
        state = json.loads(data, object_hook=_decode_bytes)
        found = state["format"]
        complete = {"epoch", "step", "tensors", "extra"} <= set(state)
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is not the state of a checkpoint: {error}.") from error
    if found != _FORMAT:
        raise CheckpointError(
            f"{path} is of the format {found!r}, and this version of Manyhands reads "
            f"{_FORMAT!r}. Use the version that wrote it."
        )
    if not (complete and {"model", "optimizer"} <= set(state["tensors"])):
        raise CheckpointError(f"{path} is not the state of a checkpoint: it lacks a part.")
    return dict(state)


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _read_sums(path: Path) -> dict[str, str]:
    try:
        lines = (path / _SUMS).read_text(encoding="ascii").splitlines()
        return {name: digest for digest, name in (line.split("  ") for line in lines)}
    except (OSError, ValueError) as error:
        reason = reason_of(error) if isinstance(error, OSError) else "it is damaged"
        raise CheckpointError(f"{path / _SUMS} can't be read: {reason}.") from error


def _verified(path: Path, name: str, sums: Mapping[str, str]) -> Path:
    file = path / name
    if name not in sums:
        raise CheckpointError(f"{path / _SUMS} is damaged: it does not list {name}.")
    try:
        found = _digest(file)
    except OSError as error:
        raise CheckpointError(f"{file} can't be read: {reason_of(error)}.") from error
    if found != sums[name]:
        raise CheckpointError(
            f"{file} is damaged or not of this checkpoint: its SHA-256 is {found[:12]}…, "
            f"and {_SUMS} says {sums[name][:12]}…."
        )
    return file


def _order(path: Path) -> tuple[int, int]:
    match = _NAME.fullmatch(path.name)
    return (int(match[1]), int(match[2] or 0)) if match else (-1, -1)


def _existing(folder: Path) -> list[Path]:
    """The checkpoint folders, oldest first."""
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted((path for path in found if _NAME.fullmatch(path.name)), key=_order)


def _free_name(folder: Path, epoch: int) -> Path:
    taken = [_order(path)[1] for path in _existing(folder) if _order(path)[0] == epoch]
    name = f"epoch-{epoch:04d}"
    return folder / (f"{name}.{max(taken) + 1}" if taken else name)


def _remove_older(folder: Path, newest: Path, keep: int) -> None:
    """Keep `newest` and the last before it. What claims a later epoch is a future given up."""
    others = [path for path in _existing(folder) if path != newest]
    before = [path for path in others if _order(path)[0] < _order(newest)[0]]
    kept = before[1 - keep :] if keep > 1 else []
    for path in others:
        if path not in kept:
            shutil.rmtree(path, ignore_errors=True)


def _what_is_left(folder: Path) -> str:
    existing = _existing(folder)
    return f"The one before, {existing[-1].name}, is intact." if existing else ""
