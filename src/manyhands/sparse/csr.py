"""CSR: many short rows in compressed form, for inputs and label sets that are mostly zeros.

Row i holds the columns `columns[offsets[i]:offsets[i + 1]]` and their values; no values means that
every entry is a one, as in a set of labels. The layout is the one of SciPy's and PyTorch's CSR
matrices, in the integer widths that the kernels read, without the warnings of `torch.sparse_csr`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from manyhands.errors import DataError

_LARGEST_WIDTH = 2**31 - 1


class CSR:
    """Rows of a matrix `width` wide. Plain data: treat it as immutable, share it freely.

    `offsets` is int64 [rows + 1], from 0 to the number of entries; `columns` int32, one per entry;
    `values` float32, one per entry, or None for all ones. Columns need not be sorted in a row.
    Slices share `columns` and `values` with what they were cut from. It pickles, also into the
    shared memory of worker processes.
    """

    __slots__ = ("columns", "offsets", "values", "width")

    offsets: torch.Tensor
    columns: torch.Tensor
    values: torch.Tensor | None
    width: int

    def __init__(self, offsets: Any, columns: Any, values: Any, width: int) -> None:
        self.offsets = _line(offsets, torch.int64, "offsets")
        self.columns = _line(columns, torch.int32, "columns")
        self.values = None if values is None else _line(values, torch.float32, "values")
        self.width = _checked_width(width)
        self._check()

    @classmethod
    def unchecked(
        cls,
        offsets: torch.Tensor,
        columns: torch.Tensor,
        values: torch.Tensor | None,
        width: int,
    ) -> CSR:
        """Tensors that are known to be right, without a look at them."""
        rows = cls.__new__(cls)
        rows.offsets, rows.columns, rows.values, rows.width = offsets, columns, values, width
        return rows

    @classmethod
    def from_lists(
        cls,
        columns: Iterable[Sequence[int]],
        width: int,
        values: Iterable[Sequence[float]] | None = None,
    ) -> CSR:
        """One list of columns per row, and one of values if they aren't all ones."""
        lists = [list(row) for row in columns]
        counts = torch.tensor([0, *(len(row) for row in lists)], dtype=torch.int64)
        flat = [column for row in lists for column in row]
        if values is None:
            return cls(counts.cumsum(0), flat, None, width)
        numbers = [list(row) for row in values]
        if [len(row) for row in numbers] != [len(row) for row in lists]:
            raise DataError("CSR: expected as many values as columns in every row.")
        return cls(counts.cumsum(0), flat, [number for row in numbers for number in row], width)

    @classmethod
    def from_dense(cls, matrix: Any) -> CSR:
        """The entries of a matrix that aren't zero."""
        dense = torch.as_tensor(matrix)
        if dense.dim() != 2:
            raise DataError(f"CSR: the matrix has shape {list(dense.shape)}; expected rows.")
        rows, columns = dense.nonzero(as_tuple=True)
        offsets = _offsets_of(torch.bincount(rows, minlength=len(dense)))
        values = dense[rows, columns].to(torch.float32)
        return cls.unchecked(offsets, columns.to(torch.int32), values, dense.shape[1])

    @classmethod
    def from_torch(cls, tensor: torch.Tensor) -> CSR:
        """A sparse tensor of PyTorch (COO or CSR) with two dimensions."""
        if tensor.layout not in (torch.sparse_coo, torch.sparse_csr) or tensor.dim() != 2:
            raise DataError(
                f"CSR: the tensor is {tensor.layout} of shape {list(tensor.shape)}; expected "
                "torch.sparse_coo or torch.sparse_csr with two dimensions (CSR.from_dense takes "
                "dense ones)."
            )
        detached = tensor.detach()
        if tensor.layout == torch.sparse_csr:
            return cls(
                detached.crow_indices(), detached.col_indices(), detached.values(), tensor.shape[1]
            )
        together = detached.coalesce()
        rows, columns = together.indices()
        offsets = _offsets_of(torch.bincount(rows, minlength=tensor.shape[0]))
        return cls(offsets, columns, together.values(), tensor.shape[1])

    @classmethod
    def from_scipy(cls, matrix: Any) -> CSR:
        """A sparse matrix or array of SciPy, of any of its formats."""
        if not hasattr(matrix, "tocsr"):
            raise DataError(
                f"CSR: got {type(matrix).__name__}; expected a sparse matrix of SciPy, "
                "which has tocsr()."
            )
        rows = matrix.tocsr()
        return cls(rows.indptr, rows.indices, rows.data, rows.shape[1])

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and width, as of a matrix."""
        return len(self), self.width

    @property
    def nnz(self) -> int:
        """How many entries there are."""
        return len(self.columns)

    @property
    def counts(self) -> torch.Tensor:
        """How many entries each row has."""
        return self.offsets.diff()

    def row_of_entries(self) -> torch.Tensor:
        """The number of the row that each entry is in (int64)."""
        return torch.repeat_interleave(self.counts)

    def values_or_ones(self) -> torch.Tensor:
        """The values, also where they aren't kept because they are ones."""
        return torch.ones(self.nnz) if self.values is None else self.values

    def __getitem__(self, rows: Any) -> CSR:
        """Rows by slice, by number, or by a list, array or tensor of numbers (or a mask)."""
        if isinstance(rows, torch.Tensor) and not rows.dim():
            rows = rows.item()
        if isinstance(rows, slice):
            start, stop, stride = rows.indices(len(self))
            if stride == 1:
                return self._between(start, max(start, stop))
            return self.take(list(range(start, stop, stride)))
        if isinstance(rows, (int, np.integer)):
            row = int(rows) + (len(self) if rows < 0 else 0)
            if not 0 <= row < len(self):
                raise IndexError(f"row {int(rows)} of a CSR with {len(self)} rows")
            return self._between(row, row + 1)
        return self.take(rows)

    def take(self, indices: Any) -> CSR:
        """These rows, in this order, copied."""
        numbers = self._row_numbers(indices)
        starts = self.offsets.index_select(0, numbers)
        counts = self.offsets.index_select(0, numbers + 1) - starts
        offsets = _offsets_of(counts)
        entries = torch.arange(int(offsets[-1])) + torch.repeat_interleave(
            starts - offsets[:-1], counts
        )
        values = None if self.values is None else self.values.index_select(0, entries)
        return CSR.unchecked(offsets, self.columns.index_select(0, entries), values, self.width)

    def _row_numbers(self, indices: Any) -> torch.Tensor:
        try:
            numbers = torch.as_tensor(indices if len(indices) else np.empty(0, np.int64))
        except (TypeError, ValueError, RuntimeError) as error:
            raise _no_rows(f"{type(indices).__name__}") from error
        if isinstance(indices, tuple) or numbers.dim() != 1 or numbers.is_floating_point():
            raise _no_rows(f"{type(indices).__name__} of shape {list(numbers.shape)}")
        if numbers.dtype == torch.bool:
            if len(numbers) != len(self):
                raise IndexError(f"a mask of {len(numbers)} for a CSR with {len(self)} rows")
            return numbers.nonzero()[:, 0]
        numbers = numbers.to(torch.int64)
        beyond = numbers[(numbers < -len(self)) | (numbers >= len(self))]
        if len(beyond):
            raise IndexError(f"row {int(beyond[0])} of a CSR with {len(self)} rows")
        return torch.where(numbers < 0, numbers + len(self), numbers)

    def to_dense(self) -> torch.Tensor:
        """The matrix with all its zeros; entries of the same place add up."""
        dense = torch.zeros(self.shape)
        place = (self.row_of_entries(), self.columns.long())
        return dense.index_put_(place, self.values_or_ones(), accumulate=True)

    def to_torch(self, layout: torch.layout = torch.sparse_coo) -> torch.Tensor:
        """The rows as a sparse tensor of PyTorch, COO or CSR."""
        if layout == torch.sparse_coo:
            places = torch.stack([self.row_of_entries(), self.columns.long()])
            return torch.sparse_coo_tensor(
                places, self.values_or_ones(), self.shape, check_invariants=False
            )
        if layout != torch.sparse_csr:
            raise DataError(f"CSR: layout is {layout}; expected torch.sparse_coo or sparse_csr.")
        with warnings.catch_warnings():
            # Every first CSR tensor of a process is announced as being in a beta state.
            warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
            return torch.sparse_csr_tensor(
                self.offsets,
                self.columns.long(),
                self.values_or_ones(),
                self.shape,
                check_invariants=False,
            )

    def tensors(self) -> list[torch.Tensor]:
        """What it consists of, for whoever moves it to other memory."""
        whole = [self.offsets, self.columns]
        return whole if self.values is None else [*whole, self.values]

    def with_tensors(self, tensors: Sequence[torch.Tensor]) -> CSR:
        """The same rows, in these tensors."""
        expected = [(tensor.shape, tensor.dtype) for tensor in self.tensors()]
        if [(tensor.shape, tensor.dtype) for tensor in tensors] != expected:
            raise ValueError("the new tensors differ from the old ones in number, shape or dtype")
        offsets, columns, *values = tensors
        return CSR.unchecked(offsets, columns, values[0] if values else None, self.width)

    def __reduce__(self) -> tuple[Any, ...]:
        return CSR.unchecked, (self.offsets, self.columns, self.values, self.width)

    def __repr__(self) -> str:
        return f"CSR({len(self)} x {self.width}, {self.nnz} entries)"

    def _between(self, start: int, stop: int) -> CSR:
        offsets = self.offsets[start : stop + 1]
        first, last = int(offsets[0]), int(offsets[-1])
        values = None if self.values is None else self.values[first:last]
        return CSR.unchecked(offsets - first, self.columns[first:last], values, self.width)

    def _check(self) -> None:
        offsets, columns = self.offsets, self.columns
        if not len(offsets) or int(offsets[0]) != 0 or int(offsets[-1]) != len(columns):
            seen = f"{int(offsets[0])} to {int(offsets[-1])}" if len(offsets) else "empty"
            raise DataError(
                f"CSR: offsets are {seen}; expected 0 to the number of columns, {len(columns)}."
            )
        if bool((offsets.diff() < 0).any()):
            raise DataError("CSR: offsets fall from one row to the next; expected them to rise.")
        if self.values is not None and len(self.values) != len(columns):
            raise DataError(
                f"CSR: there are {len(self.values)} values for {len(columns)} columns; expected "
                "one for each, or None for all ones."
            )
        if len(columns) and not 0 <= int(columns.min()) <= int(columns.max()) < self.width:
            odd = int(columns.min()) if int(columns.min()) < 0 else int(columns.max())
            raise DataError(
                f"CSR: a column is {odd}; expected 0 to {self.width - 1}, for the width is "
                f"{self.width}."
            )


def _no_rows(seen: str) -> IndexError:
    return IndexError(f"a CSR is asked for {seen}; expected rows: a slice, numbers, or a mask")


def _line(values: Any, dtype: torch.dtype, name: str) -> torch.Tensor:
    """One dimension of numbers in the width that kernels read; the same memory where it fits."""
    try:
        tensor = torch.as_tensor(values if len(values) else np.empty(0, np.int64)).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"CSR: {name} is {type(values).__name__}; expected a list, array or tensor of numbers."
        ) from error
    whole = not dtype.is_floating_point
    if tensor.dim() != 1 or (whole and (tensor.is_floating_point() or tensor.dtype == torch.bool)):
        raise DataError(
            f"CSR: {name} is {tensor.dtype} of shape {list(tensor.shape)}; expected one dimension "
            f"of {'whole ' if whole else ''}numbers."
        )
    if whole and dtype != tensor.dtype and len(tensor) and tensor.dtype == torch.int64:
        largest = max(int(tensor.max()), -int(tensor.min()))
        if largest > _LARGEST_WIDTH:
            raise DataError(f"CSR: {name} has {largest}; expected at most {_LARGEST_WIDTH}.")
    return tensor.to(dtype).contiguous()


def _checked_width(width: Any) -> int:
    whole = isinstance(width, (int, np.integer)) and not isinstance(width, bool)
    if not whole or not 0 <= width <= _LARGEST_WIDTH:
        raise DataError(
            f"CSR: width is {width!r}; expected a whole number from 0 to {_LARGEST_WIDTH}."
        )
    return int(width)


def _offsets_of(counts: torch.Tensor) -> torch.Tensor:
    offsets = torch.zeros(len(counts) + 1, dtype=torch.int64)
    torch.cumsum(counts, 0, out=offsets[1:])
    return offsets
