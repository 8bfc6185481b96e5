"""Named tensors in a safetensors file: the weights that a run hands over.

Tensors that are one and the same (tied weights) are stored once. The other names go into the
file's metadata, in the form that `safetensors.torch.save_model` uses, so that `load_model` and
`load_file` of safetensors read these files, and `load_weights` reads theirs. Never pickle.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from manyhands.errors import CheckpointError
from manyhands.run.durable import replaced_file

Tensors = dict[str, torch.Tensor]
_FORMAT = "format"


def save_weights(path: Path | str, weights: Mapping[str, torch.Tensor]) -> None:
    """Write a state dict to `path`, replacing what is there only once the new file is complete."""
    target = Path(path).absolute()
    try:
        with replaced_file(target) as partial:
            write_tensors(partial, weights)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{target} could not be written: {reason_of(error)}. "
            "Choose an existing folder that can be written to and has space left."
        ) from error


def load_weights(path: Path | str) -> Tensors:
    """Read a state dict; names that were tied share one tensor again."""
    source = Path(path)
    try:
        with safe_open(str(source), framework="pt") as file:
            # Cloned: a tensor mapped from the file would die with the file on a network disk.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
            return _with_aliases(tensors, file.metadata() or {})
    except (OSError, SafetensorError, KeyError) as error:
        raise CheckpointError(
            f"{source} can't be read as safetensors weights: {reason_of(error)}. "
            "The file is missing, cut short or of another kind; name another one."
        ) from error


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write `tensors` to a new file, each storage once. Not atomic: the caller sees to that."""
    for name, tensor in tensors.items():
        _check_storable(name, tensor)
    aliases = _find_aliases(tensors)
    kept = {name: t.detach().contiguous() for name, t in tensors.items() if name not in aliases}
    try:
        save_file(_without_overlaps(kept), str(path), metadata={**aliases, _FORMAT: "pt"})
    except KeyError as error:
        raise CheckpointError(
            f"A tensor of type {error} can't be stored: safetensors has no such type. "
            "Convert it to another type or keep it out of the state dict."
        ) from error


def reason_of(error: Exception) -> str:
    """Why the system refused, without the wrapping: "No space left on device"."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).rpartition("I/O error: ")[2].partition(" (os error")[0].rstrip(".")


def _check_storable(name: str, tensor: object) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise CheckpointError(
            f"{name!r} in the state dict is a {type(tensor).__name__}, and only tensors can be "
            "stored. Register it as a buffer, or leave it out of the state dict."
        )
    if tensor.layout != torch.strided or tensor.is_meta:
        kind = "has no data (device meta)" if tensor.is_meta else f"has layout {tensor.layout}"
        raise CheckpointError(
            f"Tensor {name!r} {kind}, and only dense tensors can be stored. "
            "Make it dense before training."
        )


def _find_aliases(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Map each name whose tensor was already met under another name to that first name."""
    first: dict[tuple[object, ...], str] = {}
    aliases: dict[str, str] = {}
    for name, tensor in tensors.items():
        key = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        # Empty tensors all have the same address; metadata has one reserved name.
        if tensor.numel() == 0 or name == _FORMAT or first.setdefault(key, name) == name:
            continue
        aliases[name] = first[key]
    return aliases


def _without_overlaps(tensors: Tensors) -> Tensors:
    """Copy tensors whose storage is used by others too: safetensors refuses overlapping views."""
    uses: dict[int, int] = {}
    for tensor in tensors.values():
        address = tensor.untyped_storage().data_ptr()
        uses[address] = uses.get(address, 0) + 1
    return {
        name: t.clone() if uses[t.untyped_storage().data_ptr()] > 1 else t
        for name, t in tensors.items()
    }


def _with_aliases(tensors: Tensors, metadata: Mapping[str, str]) -> Tensors:
    aliased = {
        name: tensors[kept]
        for name, kept in metadata.items()
        if name not in tensors and kept in tensors
    }
    return {**tensors, **aliased}
