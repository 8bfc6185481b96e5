"""Shared memory: tensors placed in an arena travel as pointers."""

import os

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from manyhands.transport.arena import Arena, dumps, loads
from manyhands.transport.sealing import never_shrinks


def second_mapping(arena: Arena) -> Arena:
    return Arena(os.dup(arena.fd), arena.size_bytes)


def test_a_tensor_keeps_values_shape_and_strides():
    tensor = torch.randn(4, 3, 5, 5).contiguous(memory_format=torch.channels_last)
    arena = Arena.with_room_for([tensor])
    placed = arena.place(tensor)
    assert torch.equal(placed, tensor)
    assert placed.stride() == tensor.stride()
    assert placed.data_ptr() % 64 == 0


def test_what_is_pickled_is_a_pointer_seen_from_both_sides():
    tensor = torch.zeros(1000, 100)
    arena = Arena.with_room_for([tensor])
    placed = arena.place(tensor)
    data = dumps({"x": placed}, [arena])
    assert len(data) < 1000
    other = loads(data, [second_mapping(arena)])["x"]
    placed[3, 4] = 7.0
    assert other[3, 4] == 7.0
    assert other.data_ptr() != placed.data_ptr()


def test_rows_of_several_matrices_lie_side_by_side():
    matrices = [torch.randn(5, 3) for _ in range(3)]
    arena = Arena.with_room_for([*matrices, torch.zeros(4)])
    placed = arena.place_rows(matrices)
    after = arena.place(torch.ones(4))
    assert all(torch.equal(*pair) for pair in zip(placed, matrices, strict=True))
    assert [p.data_ptr() - placed[0].data_ptr() for p in placed] == [0, 12, 24]
    assert [p.stride() for p in placed] == [(9, 1)] * 3
    others = loads(dumps(placed, [arena]), [second_mapping(arena)])
    placed[1].fill_(7.0)
    assert torch.equal(others[1], placed[1])
    assert torch.equal(others[2], matrices[2])
    assert torch.equal(after, torch.ones(4))


def test_tied_and_frozen_parameters_stay_tied_and_frozen():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    model[0].bias.requires_grad_(False)
    arena = Arena.with_room_for(model.parameters())
    for parameter in model.parameters():
        parameter.data = arena.place(parameter.detach())
    copy = loads(dumps(model, [arena]), [second_mapping(arena)])
    assert copy[0].weight is copy[1].weight
    assert isinstance(copy[0].weight, nn.Parameter)
    assert not copy[0].bias.requires_grad
    assert copy[1].bias.requires_grad


def test_memory_begins_where_the_kernel_can_join_its_pages():
    arena = Arena.with_room_for([torch.zeros(1000)])
    for mapping in (arena, second_mapping(arena)):
        assert mapping.place(torch.zeros(1)).data_ptr() % 2**21 == 0


def test_a_mapping_that_exceeds_its_file_is_refused():
    arena = Arena.with_room_for([torch.zeros(1000)])
    with pytest.raises(ValueError, match="exceed"):
        Arena(arena.fd, 2 * arena.size_bytes)


def test_tensors_outlive_their_arena():
    arena = Arena.with_room_for([torch.zeros(1000)])
    tensor = arena.place(torch.ones(1000))
    arena.close()
    del arena
    assert tensor.sum() == 1000


def test_empty_and_scalar_tensors():
    tensors = [torch.zeros(0), torch.tensor(5), torch.zeros(3, 0)]
    arena = Arena.with_room_for(tensors)
    assert [t.shape for t in map(arena.place, tensors)] == [t.shape for t in tensors]


def test_values_outside_the_arena_are_pickled_by_value():
    arena = Arena.with_room_for([torch.zeros(1)])
    tensor = torch.arange(3)
    assert torch.equal(loads(dumps(tensor, [arena]), [arena]), tensor)


def test_what_the_main_script_defines_travels_by_value():
    namespace: dict[str, object] = {"__name__": "__main__"}
    exec("class Here:\n    def answer(self): return 42", namespace)
    assert b"answer" in dumps(namespace["Here"], [])


def test_too_much_is_an_error_of_ours():
    arena = Arena.with_room_for([torch.zeros(4)])
    with pytest.raises(RuntimeError, match="full"):
        arena.place(torch.zeros(4000))


def test_a_peer_can_map_the_memory_without_fear_of_its_shrinking():
    arena = Arena.with_room_for([torch.zeros(1000)])
    assert never_shrinks(arena.fd, arena.size_bytes)
    assert not never_shrinks(arena.fd, arena.size_bytes + 1)
    with pytest.raises(PermissionError):
        os.truncate(arena.fd, 1)


def test_memory_that_can_shrink_and_files_that_are_no_memory_are_told_apart(tmp_path):
    unsealed = os.memfd_create("unsealed")
    os.truncate(unsealed, 100)
    assert not never_shrinks(unsealed, 100)
    os.close(unsealed)
    with (tmp_path / "file").open("wb") as file:
        file.write(bytes(100))
        file.flush()
        assert not never_shrinks(file.fileno(), 100)
    reader, writer = os.pipe()
    assert not never_shrinks(reader, 0)
    os.close(reader)
    os.close(writer)


def test_a_parametrized_module_travels_and_its_parameters_stay_shared():
    torch.manual_seed(0)
    model = nn.Sequential(weight_norm(nn.Linear(4, 3)), nn.ReLU(), spectral_norm(nn.Linear(3, 2)))
    arena = Arena.with_room_for(model.parameters())
    for parameter in model.parameters():
        parameter.data = arena.place(parameter.data)
    theirs = loads(dumps(model, [arena]), [arena])
    points = torch.randn(5, 4)
    assert torch.equal(theirs.eval()(points), model.eval()(points))
    with torch.no_grad():
        model[0].parametrizations.weight.original0.mul_(2.0)  # the norms of the rows
    assert torch.equal(theirs(points), model(points))
    arena.close()
