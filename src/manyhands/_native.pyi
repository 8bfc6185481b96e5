"""Kernels of Manyhands: update rules, the compiled training step, links to servers (`native/`).

Arrays are C-contiguous and on the CPU; NumPy arrays and torch tensors pass without copying (a
tensor that requires a gradient passes as `tensor.detach()`). A wrong dtype or a strided array is a
`TypeError`, a wrong shape or value a `ValueError`; both leave every array unchanged. The GIL is
released while a kernel runs. Shared weights may be changed by other processes during any call:
such races are intended (Adam, section 3.2.2).
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

_Floats: TypeAlias = torch.Tensor | npt.NDArray[np.float32]
_Doubles: TypeAlias = torch.Tensor | npt.NDArray[np.float64]
_Integers: TypeAlias = torch.Tensor | npt.NDArray[np.int64]
_Numbers: TypeAlias = npt.NDArray[np.uint32] | npt.NDArray[np.int64]
_Labels: TypeAlias = torch.Tensor | npt.NDArray[np.int32]
_Bytes: TypeAlias = npt.NDArray[np.uint8]
_Outcomes: TypeAlias = npt.NDArray[np.int8]

def simd() -> str:
    """The instruction set in use: "avx512", "avx2" or "portable"."""

def simd_choices() -> list[str]:
    """The instruction sets that this machine can run, best first."""

def use_simd(name: str) -> None:
    """Choose another instruction set for the process; for tests and benchmarks."""

def flush_denormals() -> None:
    """Let denormal numbers count as zero in the calling thread."""

def keep_freed_memory() -> None:
    """Let the process reuse large freed buffers instead of unmapping them (glibc only)."""

def map_shared(fd: int, size_bytes: int) -> _Bytes:
    """The first bytes of a file, shared, from a border of huge pages on: there the kernel can join
    its pages. Raises OSError. The mapping lives as long as the array."""

class LabelLines:
    """What `parse_label_lines` found. The arrays belong to this object; each asks it anew."""

    sample_lines: npt.NDArray[np.int64]
    label_counts: npt.NDArray[np.int64]
    feature_counts: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int32]
    columns: npt.NDArray[np.int32]
    values: npt.NDArray[np.float32]
    lines: int
    blank: int
    faults: int
    repeats: int
    first_faults: list[tuple[int, str]]
    first_repeats: list[tuple[int, str]]

def parse_label_lines(
    text: bytes | bytearray | memoryview,
    first_line: int,
    *,
    first_label: int,
    label_count: int,
    first_feature: int,
    feature_count: int,
    most_notes: int,
) -> LabelLines:
    """Lines "12,7 4:0.5 19:1.25" as numbers: per sample its line and how many labels and features
    it has, then all of them, ascending and each once within a sample.

    A number of the file is one of `count` from `first` on, and becomes an index from 0. A line that
    is no sample is a fault, with the reason; `most_notes` faults, and repeats, are kept in words.
    """

def crc32c(data: bytes | bytearray | memoryview, before: int = 0) -> int:
    """CRC-32C of the bytes, going on from that of what came before them."""

def fetch_add(counters: _Integers, index: int, amount: int) -> int:
    """Add to one counter, atomically across processes; returns the value before."""

class Rule:
    """What a gradient does to a weight.

    "sgd", "adagrad", "adam" and "adamw" are as `torch.optim` defines them. "outer" takes what a
    replica moved by in many steps and gives it Nesterov momentum, which itself moves once in
    `delay` updates. "accumulate" is a replica's local step: plain SGD that also sums the gradients
    (weight decay included) in its state, to be pushed later.
    """

    def __init__(
        self,
        name: str,
        *,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        delay: int = 1,
    ) -> None: ...
    @property
    def states(self) -> int:
        """How many state arrays the rule keeps for each weight."""

def update(
    rule: Rule,
    lr: float,
    step: int,
    grad_scale: float,
    weights: Sequence[_Floats],
    grads: Sequence[_Floats],
    states: Sequence[Sequence[_Floats]],
) -> None:
    """Apply gradients, each multiplied by `grad_scale`, in one walk over memory.

    `step` counts from 1. `states[i]` holds: sgd nothing, or the momentum; adagrad the sum of
    squares; adam and adamw the mean and the square; outer the momentum and the sum that waits;
    accumulate the summed gradient.
    """

def update_rows(
    rule: Rule,
    lr: float,
    step: int,
    grad_scale: float,
    weight: _Floats,
    rows: _Integers,
    grads: _Floats,
    states: Sequence[_Floats],
    keep: _Floats | None = None,
) -> None:
    """Apply gradients [k, D] to the rows named (each once) of a weight [R, D].

    `keep` [k] multiplies each of these rows of the weight first.
    """

def row_products(
    x: _Floats,
    weight: _Floats,
    bias: _Floats | None,
    offsets: _Integers,
    rows: _Integers,
    out: _Floats,
    threads: int = 1,
) -> None:
    """Multiply each sample of `x` [n, D] with rows of a weight [R, D] of its own.

    Sample i has `rows[offsets[i]:offsets[i + 1]]`; the products, and the biases [R] of the rows
    if there are any, go to `out`, one for each of `rows`.
    """

def squared_norm(arrays: Sequence[_Floats]) -> float:
    """The sum of all squares, accumulated in double precision."""

def average(averaged: Sequence[_Floats], weights: Sequence[_Floats], decay: float) -> None:
    """Move each average by the share `1 - decay` towards its weight, in one walk."""

def add_and_clear(accumulated: _Floats, outgoing: _Floats) -> None:
    """`outgoing += accumulated; accumulated = 0`, while workers go on adding to `accumulated`."""

def take(outgoing: _Floats, staged: _Floats, starts: _Integers, counts: _Integers) -> None:
    """`staged = outgoing; outgoing = 0` in ranges of `counts[i]` floats from `starts[i]` on."""

def difference(
    base: _Floats, local: _Floats, out: _Floats, starts: _Integers, counts: _Integers
) -> None:
    """`out = base - local` in the ranges."""

def merge(
    local: _Floats,
    base: _Floats,
    sent: _Floats | None,
    pulled: _Floats,
    starts: _Integers,
    counts: _Integers,
) -> None:
    """`local += pulled - (base - sent); base = pulled` in the ranges; without `sent`, zeros.

    Workers go on changing `local` meanwhile.
    """

def encoded_bytes(encoding: str, n: int, count: int = 0) -> int:
    """Bytes of n floats in "float32", "bfloat16", "int8" or "topk", which keeps `count`."""

def encode(encoding: str, values: _Floats, count: int = 0) -> bytes:
    """The payload that carries `values`; "topk" keeps the `count` largest magnitudes."""

def decode(encoding: str, payload: bytes, n: int, out: _Floats, first: int = 0) -> None:
    """Read values [first, first + len(out)) of the n in a payload; ValueError if malformed."""

def finite(encoding: str, payload: bytes, n: int) -> bool:
    """Whether a payload is well formed and all its n values are finite."""

class Refused(RuntimeError):
    """The server answered No. Other chunks of the call were dealt with; the link stays usable."""

    code: int
    """Why: a `Refusal` of the protocol."""
    chunk: int

class Link:
    """One connection to one lane of a parameter server: push, pull and their kin.

    Calls block without the GIL; one thread at a time may use a link, but any may close it. Arrays
    must stay unchanged until a call returns. `ConnectionError`, `TimeoutError` and a Ctrl-C leave
    the link broken: make a new one and call again with the same sequence number, which a server
    recognises, so that no update is applied twice. `Refused` is raised once every other chunk of
    the call is answered.

    Calls with many chunks take the `leases` under which each is believed to be held (0, and None
    for all of them: no opinion), and write to `outcomes`, also when they raise, what became of
    each: 1 carried out, 0 unanswered, -code refused.

    On the machine of its server, a link given `own` sends payloads inside that memory by
    reference, and one given `values` pulls by copying, while the server goes on applying updates:
    some values may be newer than the version says. A chunk that is not held there under its lease
    is refused, and a server that is gone is a `ConnectionError`, as it is without copying.
    """

    def __init__(
        self,
        fd: int,
        *,
        client: int,
        window: int = 16,
        timeout_s: float = 30.0,
        own: _Bytes | None = None,
        values: _Bytes | None = None,
    ) -> None:
        """Take over `fd`, a connected stream socket (not if this raises).

        At most `window` requests are unanswered at any time. `timeout_s` is how long not a byte
        may move. `own` is memory that the server maps too, `values` the server's own memory.
        """

    def push(
        self,
        chunks: _Numbers,
        starts: _Integers,
        counts: _Integers,
        values: _Floats,
        *,
        rate: float,
        steps: int,
        sequence: int,
        versions: _Integers,
        leases: _Numbers | None = None,
        outcomes: _Outcomes | None = None,
        encoding: str = "float32",
        keep: float = 0.01,
        sent: _Floats | None = None,
        rising: bool = False,
    ) -> None:
        """Send updates: chunk i is `counts[i]` floats of `values` from `starts[i]` on.

        All have the same sequence number, unless it is `rising` by one for each, for a call that
        sends several updates to a chunk. `versions` says at which version each was computed and
        receives the version after it. `encoding` is "float32", "bfloat16", "int8" or "topk", which
        keeps the share `keep`; `sent` receives what the server decodes.
        """

    def pull(
        self,
        chunks: _Numbers,
        starts: _Integers,
        counts: _Integers,
        out: _Floats,
        *,
        versions: _Integers,
        leases: _Numbers | None = None,
        outcomes: _Outcomes | None = None,
        encoding: str = "float32",
    ) -> None:
        """Fetch chunks into their ranges of `out`, and their `versions`."""

    def push_pull(
        self,
        chunks: _Numbers,
        starts: _Integers,
        counts: _Integers,
        values: _Floats,
        out: _Floats,
        *,
        rate: float,
        steps: int,
        sequence: int,
        versions: _Integers,
        leases: _Numbers | None = None,
        outcomes: _Outcomes | None = None,
        encoding: str = "float32",
        keep: float = 0.01,
        sent: _Floats | None = None,
        rising: bool = False,
    ) -> None:
        """Push, and fetch every chunk as it is once its update was applied (or newer)."""

    def push_factors(
        self,
        chunk: int,
        a: _Floats,
        d: _Floats,
        *,
        rate: float,
        steps: int,
        sequence: int,
        seen: int,
        lease: int = 0,
        encoding: str = "float32",
    ) -> int:
        """Send activations [k, inputs] and errors [k, rows] of a span; returns its version."""

    def push_rows(
        self,
        chunks: _Numbers,
        row_starts: _Integers,
        row_counts: _Integers,
        rows: _Numbers,
        values: _Floats,
        *,
        value_starts: _Integers,
        widths: _Integers,
        rate: float,
        steps: int,
        sequence: int,
        versions: _Integers,
        leases: _Numbers | None = None,
        outcomes: _Outcomes | None = None,
    ) -> None:
        """Send gradients of rows: chunk i's are `row_counts[i]` of `rows` from `row_starts[i]` on,
        numbered within the chunk, each with `widths[i]` of the `values` from `value_starts[i]` on.

        The rest is as for `push`.
        """

    def pull_rows(
        self,
        chunks: _Numbers,
        starts: _Integers,
        counts: _Integers,
        out: _Floats,
        *,
        widths: _Integers,
        row_starts: _Integers,
        changed: npt.NDArray[np.uint8],
        eras: _Integers,
        versions: _Integers,
        leases: _Numbers | None = None,
        outcomes: _Outcomes | None = None,
        encoding: str = "float32",
    ) -> None:
        """Fetch the rows of chunks that changed since these `versions` of these `eras`, or whole
        chunks where the server can't tell; both receive what `out` holds now.

        Chunk i has rows of `widths[i]` floats; the flags of its rows begin at `row_starts[i]` of
        `changed`, which receives 1 for every row that came.
        """

    def set(
        self,
        chunk: int,
        array: int,
        values: _Floats,
        *,
        sequence: int,
        updates: int = 0,
        lease: int = 0,
    ) -> None:
        """Set an array of a chunk: 0 the weights, then the rule's states.

        `updates`, unless 0, is how many the chunk is to go on counting from.
        """

    def get(self, chunk: int, array: int, out: _Floats, *, lease: int = 0) -> tuple[int, int]:
        """Fetch an array of a chunk; returns its version and how many updates it counts."""

    def places(
        self, chunks: _Numbers, weights_offsets: _Integers, version_offsets: _Integers
    ) -> None:
        """Say where in `values` each chunk's weights lie, in bytes, and its version (u64) and,
        behind that, its lease (u32)."""

    def close(self) -> None:
        """Close the connection; a call in another thread ends with a `ConnectionError`."""

    @property
    def waited_s(self) -> float:
        """Time blocked while there was more to send: the window was full or the server slow."""

    @property
    def pushed_bytes(self) -> int:
        """Payloads pushed, as encoded; those by reference count too."""

    @property
    def pulled_bytes(self) -> int:
        """Payloads pulled, as encoded; those copied count too."""

class SparseTrainer:
    """A net with a wide output layer, trained on its active neurons: layers are added in order,
    then `finish`, then `train`.

    Every hidden layer has a ReLU behind it. It keeps the arrays and the index given to it alive.
    One call at a time: a second thread waits for the first. With share="batch" the results are the
    same for any number of threads; with share="sample" threads update the weights without locks.
    """

    def __init__(self, max_batch: int, threads: int) -> None: ...
    def hidden(
        self,
        weight: _Floats,
        bias: _Floats | None,
        weight_states: Sequence[_Floats],
        bias_states: Sequence[_Floats],
        *,
        sparse: bool,
    ) -> None:
        """`weight` is [outputs, inputs], or [inputs, outputs] of a sparse first layer.

        The rows of a sparse layer may lie apart; those of the states then as far.
        """

    def output(
        self,
        weight: _Floats,
        bias: _Floats | None,
        weight_states: Sequence[_Floats],
        bias_states: Sequence[_Floats],
    ) -> None:
        """`weight` is [neurons, inputs]; its rows may lie apart, and those of its states as far."""

    def choose_by(
        self,
        index: LshIndex,
        *,
        choice: str,
        limit: int,
        floor: int,
        votes: int,
        hardest: int = 0,
    ) -> None:
        """Choose active neurons by this index; may be called again for another one."""

    def finish(
        self,
        rule: Rule,
        *,
        share: str,
        loss: str,
        collect: bool = False,
        narrow: bool = False,
    ) -> None:
        """`share` is "batch" or "sample", `loss` "softmax" or "sigmoid".

        With `collect` rows take a plain step, and their gradients are kept for `collected`. With
        `narrow` the output layer's weight is trained as bfloat16, in a copy whose changed rows are
        written back to `weight` before `train` returns.
        """

    def take_weight(self) -> None:
        """Read the output layer's weight again, after a change from outside."""

    def catch_up(self) -> None:
        """Let rows decay that have missed some decay, all of them; `train` does so for the rows
        that it touches."""

    def train(
        self,
        *,
        offsets: _Integers | None = None,
        columns: _Integers | None = None,
        values: _Floats | None = None,
        dense: _Floats | None = None,
        label_offsets: _Integers,
        labels: _Integers,
        batch_size: int,
        rates: _Doubles,
        first_step: int,
        seed: int,
        losses: _Doubles,
        active_offsets: _Integers | None = None,
        active: _Integers | None = None,
    ) -> int:
        """Train on consecutive batches of samples; how many batches were done.

        Offsets are int64, columns, labels and active neurons int32. Batch i chooses by seed + i.
        `active` names the active neurons of each batch (of each sample, with share="sample")
        instead. Fewer batches than all mean that the next one's loss is not finite: it was stored,
        its update was not applied.
        """

    def figures(self) -> dict[str, float]:
        """What training cost so far: seconds by phase, rows, and the bytes of rows."""

    def collected(self) -> tuple[Any, Any, Any, Any, Any]:
        """Of the last batch: rows and gradients of a sparse input layer; rows, gradients and bias
        gradients of the output layer."""

class Plan:
    """A network compiled for training: layers are added in order, then `finish`, then `train`.

    It keeps pointers into the weights and states given to it and keeps those arrays alive. Its
    scratch memory serves one call at a time: a second thread waits for the first. Other plans, in
    this process or others, may train the same weights at the same time.
    """

    def __init__(self, input_shape: Sequence[int], max_batch: int) -> None:
        """`input_shape` is one sample's: (channels, height, width) or (features,)."""

    def linear(
        self,
        weight: _Floats,
        bias: _Floats | None,
        weight_states: Sequence[_Floats],
        bias_states: Sequence[_Floats],
        train_weight: bool = True,
        train_bias: bool = True,
        factors: bool = False,
    ) -> None:
        """`weight` is [outputs, inputs], `bias` [outputs].

        With `factors` the weight stays as it is, and `train` gives what its gradient is the product
        of instead of forming it.
        """

    def conv2d(
        self,
        weight: _Floats,
        bias: _Floats | None,
        stride: tuple[int, int],
        padding: tuple[int, int],
        dilation: tuple[int, int],
        weight_states: Sequence[_Floats],
        bias_states: Sequence[_Floats],
        train_weight: bool = True,
        train_bias: bool = True,
    ) -> None:
        """`weight` is [outputs, channels, height, width], `bias` [outputs]; one group."""

    def relu(self) -> None: ...
    def tanh(self) -> None: ...
    def sigmoid(self) -> None: ...
    def max_pool2d(
        self, kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int]
    ) -> None: ...
    def avg_pool2d(
        self, kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int]
    ) -> None:
        """Pixels of the padding count as zeros, as in PyTorch by default."""

    def flatten(self) -> None: ...
    def dropout(self, p: float) -> None: ...
    def cross_entropy(self, label_smoothing: float = 0.0) -> None:
        """End the layers with the mean cross entropy of a batch."""

    def finish(self, rule: Rule, clip_norm: float | None, seed: int) -> None:
        """Allocate activations and scratch once; `seed` starts dropout's random numbers."""

    def train(
        self,
        x: _Floats,
        y: _Integers,
        batch_size: int,
        lrs: _Doubles,
        first_step: int,
        losses: _Doubles,
        factors: Sequence[tuple[_Floats, _Floats]] = (),
    ) -> int:
        """Train on consecutive batches of `x` [N, *input_shape]; returns how many were done.

        Batch i is step `first_step + i` (counting from 1) with the rate `lrs[i]`; its mean loss
        goes to `losses[i]`. A loss that is not finite is written and ends the call before that
        batch changes a weight.

        `factors` receives, of each layer that gives factors, in order, its inputs [N, inputs] and
        errors [N, outputs].
        """

    def forward(self, x: _Floats, out: _Floats) -> None:
        """Write the logits of `x` to `out` [N, outputs], without dropout."""

    @property
    def outputs(self) -> int:
        """How many logits a sample has."""

class ChunkServer:
    """The native half of a parameter server: chunks on lanes, one thread each.

    Add the chunks, `start`, then hand over connected and authenticated sockets with `adopt`: each
    leads to one lane and speaks the frames of docs/protocol.md. It opens no socket by itself and
    decides nothing about who may come. Thread-safe once started; a lane never takes the GIL.
    """

    def __init__(
        self,
        *,
        lanes: int,
        max_payload_bytes: int = 67108864,
        refuse_nonfinite: bool = True,
        staleness: str = "ignore",
        pin: bool = True,
        replicated: bool = False,
    ) -> None:
        """`staleness`: "ignore", or "scale" to divide an update's rate by its staleness.

        With `refuse_nonfinite` an update is looked at as a whole before any of it is applied;
        without, large ones are applied in pieces as they arrive. `pin` keeps a lane on one NUMA
        node where the machine has several. A `replicated` server serves no chunk and touches no
        memory of one before `hold`, and never applies an update in pieces; another is the primary
        of every chunk from the start and has no peers.
        """

    def add_chunk(
        self,
        chunk: int,
        *,
        lane: int,
        parameter: int,
        first_row: int,
        rows: int,
        row_floats: int,
        rule: Rule,
        state_starts: Sequence[float],
        lease: int = 0,
        by_rows: bool = False,
    ) -> None:
        """Hold rows [first_row, first_row + rows) of a parameter; zeros until they are set.

        Chunks of one parameter whose rows follow each other on one lane form a span, which factors
        address by its first chunk. `state_starts` is what each state of the rule is filled with.
        `by_rows` keeps the version at which each row changed, for `Link.pull_rows`.
        """

    def start(self) -> None: ...
    def stop(self) -> None:
        """Close every connection and end the lanes; the memory stays until the object goes."""

    def adopt(
        self,
        fd: int,
        *,
        lane: int,
        client: int,
        admin: bool = False,
        shared_fd: int = -1,
        shared_bytes: int = 0,
        peer: int = -1,
    ) -> None:
        """Take over a connected stream socket, and close `shared_fd` once it is mapped.

        `shared_fd` is the memfd that this client's payloads may lie in; it must be sealed with
        F_SEAL_SHRINK. After an exception both descriptors still belong to the caller. Only an
        `admin` connection may set and get arrays. `peer` >= 0: the connection comes from the server
        of that number and may send what copies here are to take, and nothing else; an older one
        from the same server to the same lane is closed.
        """

    def hold(
        self,
        chunks: Sequence[int],
        *,
        role: str,
        lease: int,
        mirrors: Sequence[int] = (),
        joining: Sequence[tuple[int, int]] = (),
    ) -> None:
        """What this server is to these chunks: "primary", "mirror" or "none" (keeps what it has).

        A primary acknowledges an update when every server of `mirrors` has it, and those of
        `joining` (server, since) that were sent everything. Another `since` is another copy; a
        joining one that becomes a mirror is the same. Done soon, by the lanes, in the order of
        calls to `hold`, `adopt_peer` and `drop_peer`. Ignored for chunks that are known under a
        higher lease. When a peer was restarted, call `drop_peer` first: what it had is gone.
        """

    def adopt_peer(self, fd: int, *, lane: int, peer: int) -> None:
        """Take over our connection to a lane of another server, for the copies it is to have.

        An older one to the same server and lane is closed. The copies are aligned over it.
        """

    def drop_peer(self, peer: int) -> None:
        """Close the connections with that server, both ways. Nobody is told `peer_lost`."""

    def mute_peer(self, peer: int, on: bool) -> None:
        """Neither read from nor write to connections with that server, as if a cable were cut."""

    def wait_events(self, timeout_s: float) -> list[tuple[str, int, int, int]]:
        """What happened since the last call; waits for the first, in vain after `stop`.

        ("in_step", peer, chunk, since): a joining copy has everything and is required whatever
        happens, until it is no longer listed; told again at every `hold` that lists it.
        ("peer_lost", peer, lane, 0): the connection that leads there broke. ("fenced", chunk,
        lease, 0): another server is the primary, under that lease or a later one; this one stopped
        serving the chunk.
        """

    def lagging(self) -> dict[int, float]:
        """The seconds for which something waits for a peer and nothing moves; not for others."""

    def progress(self) -> npt.NDArray[np.int64]:
        """Rows of chunk, lease of its last update and version, for the chunks that are held."""

    def collect(self, chunk: int, *, since: int = -1) -> bytes | None:
        """A snapshot of a chunk, taken between two updates; None unless its version is higher.

        The bytes are described in native/server/snapshot.h. None as well if it is not held.
        """

    def restore(self, chunk: int, snapshot: bytes, lease: int) -> None:
        """Take a chunk's contents from a snapshot, before it is held as its primary.

        ValueError when it is too late for that, or when this is no snapshot of the chunk.
        """

    def place_of(self, chunk: int) -> tuple[int, int]:
        """Where a chunk's weights and its version (u64) lie in the server's memory, in bytes.

        8 bytes behind the version lies the lease (u32) under which the server is the chunk's
        primary, 0 while it is not.
        """

    def stats(self) -> dict[str, Any]:
        """What was counted since the start, over all lanes.

        updates, pushed_bytes, pulled_bytes, frames, replays, rounds, batched_max, blocked_replies,
        replicated_updates, of those posted_updates, replicated_bytes, snapshots_sent, late_updates
        and busy_s (seconds in which lanes were working) rise; connections, waiting_bytes (memory of
        payloads on their way in) and held_replies (updates that are applied and wait for copies)
        are as of now; refused counts by name; staleness has an exact count for 0 to 63 updates and
        one for all above.
        """

    @property
    def memory_fd(self) -> int:
        """The memfd of weights and versions; clients can map it for reading only."""

    @property
    def memory_bytes(self) -> int: ...

class LshIndex:
    """Hash tables of a wide layer's neurons (`native/sparse/lsh_index.h`).

    Any number of threads may choose or mark at a time; `build`, `refresh` and `rebuild` wait for
    each other and for nobody else, and may read weights that others write meanwhile. The same
    state, inputs and seed give the same rows, for any number of threads. A row may count as not a
    number: it is then in a bucket like any other.
    """

    def __init__(
        self,
        neurons: int,
        width: int,
        *,
        family: str = "dwta",
        hashes: int,
        tables: int,
        bucket: int,
        bin: int = 8,
        density: float = 1 / 3,
        filling: str = "fifo",
        seed: int = 0,
    ) -> None:
        """`family` is "simhash", "wta", "dwta" or "minhash", `filling` "fifo" or "reservoir".

        A bucket holds `bucket` neurons. `bin` is for all but SimHash, `density` for SimHash and
        MinHash.
        """

    def build(self, weight: _Floats, threads: int = 1) -> None:
        """Put all neurons into new tables; `weight` is [neurons, width]."""

    def refresh(self, weight: _Floats, threads: int = 1) -> int:
        """Hash the marked neurons again and move them; returns how many."""

    def rebuild(self, weight: _Floats, seed: int, threads: int = 1) -> None:
        """Draw new hash functions and put all neurons into new tables."""

    def codes(self, x: _Floats) -> npt.NDArray[np.uint32]:
        """The bucket of each row of `x` [N, width] in each table: [N, tables]."""

    def codes_sparse(
        self, offsets: _Integers, columns: _Labels, values: _Floats | None
    ) -> npt.NDArray[np.uint32]:
        """The same for rows in compressed form, columns rising; without values, all ones."""

    def see_inputs(self, x: _Floats) -> None:
        """Inputs [B, width] that training meets: SimHash sees inputs from their running mean."""

    def choose_shared(
        self,
        x: _Floats,
        label_offsets: _Integers | None,
        labels: _Labels | None,
        *,
        choice: str,
        limit: int,
        floor: int,
        votes: int,
        hardest: int = 0,
        weight: _Floats | None = None,
        bias: _Floats | None = None,
        seed: int,
        threads: int = 1,
    ) -> npt.NDArray[np.int64]:
        """One active set for the batch `x` [B, width]: rows, ascending, each once.

        All labels, then the `hardest` of each sample: of the neurons that its own buckets name,
        those with the largest outputs (by `weight` and `bias`) that aren't its labels; then at
        most `limit` neurons from the tables by `choice` ("vanilla", "topk" or "threshold", which
        asks for `votes`), then random ones until there are `floor`.
        """

    def choose_each(
        self,
        x: _Floats,
        label_offsets: _Integers | None,
        labels: _Labels | None,
        *,
        choice: str,
        limit: int,
        floor: int,
        votes: int,
        seed: int,
        threads: int = 1,
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """An active set for each sample: offsets [B + 1] and rows, ascending in each sample."""

    def mark_changed(self, rows: _Integers) -> None:
        """Say that the weights of these neurons have changed."""

    def occupancy(self) -> dict[str, int]:
        """How full the tables are: tables, buckets (of a table), slots, held, dropped,
        empty_buckets, full_buckets and largest_bucket."""

    @property
    def built(self) -> bool:
        """Whether the tables hold neurons."""

    @property
    def changed(self) -> int:
        """How many neurons are marked."""

    @property
    def memory_bytes(self) -> int:
        """Tables, codes, marks and scratch; while new tables are made there are two sets."""
