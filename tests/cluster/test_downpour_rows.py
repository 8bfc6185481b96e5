"""Downpour trains nets with sparse gradients by rows: pushes name rows, fetches bring rows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import manyhands as mh
from manyhands.telemetry.event_log import read_events

WORDS, CLASSES = 4000, 4


class Listening(nn.Embedding):
    """Notes in a file which rows it was told of."""

    def __init__(self, notes: Path | None = None) -> None:
        super().__init__(WORDS, 16, sparse=True)
        self.notes = notes

    def rows_changed(self, rows: torch.Tensor) -> None:
        assert rows.dtype == torch.int64
        if self.notes is not None:
            with self.notes.open("a") as file:
                file.write(" ".join(map(str, rows.tolist())) + "\n")


class Reader(nn.Module):
    """Words to a class, through the mean of their vectors."""

    def __init__(self, notes: Path | None = None) -> None:
        super().__init__()
        self.words = Listening(notes)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.words(words).mean(1))


def texts(samples: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Texts of six words; a class has forty of its own, which lie far apart."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (samples,), generator=generator)
    own = labels[:, None] + CLASSES * torch.randint(40, (samples, 6), generator=generator)
    noise = torch.randint(160, (samples, 6), generator=generator)
    own = torch.where(torch.rand(samples, 6, generator=generator) < 0.7, own, noise)
    return own * (WORDS // 160), labels


def events_of(run: Path, name: str) -> list[dict]:
    return [e for e in read_events(run / "events.jsonl") if e["event"] == name]


@pytest.mark.parametrize("transport", ["auto", "tcp"])
@pytest.mark.parametrize("optimizer", [mh.optim.Adagrad(lr=0.1), mh.optim.Adam(lr=0.01)])
def test_sparse_gradients_travel_as_rows_unless_told_otherwise(
    make_trainer, tmp_path: Path, transport: str, optimizer: mh.optim.Rule
) -> None:
    torch.manual_seed(0)
    model, notes = Reader(tmp_path / "told"), tmp_path / "run"
    untouched = model.words.weight[1].clone()
    trainer = make_trainer(
        model,
        optimizer=optimizer,
        strategy=mh.Downpour(replicas=2, servers=2, copies=1, transport=transport),
    )
    result = trainer.fit(texts(4096), validation=texts(1024, seed=1), epochs=5)
    assert result.metrics["accuracy"] > 0.8
    told = " ".join(event["message"] for event in events_of(notes, "Note"))
    assert "pushing gradients" in told
    assert "words.weight: rows" in told
    assert torch.equal(model.words.weight[1], untouched)
    rows = {int(row) for row in (tmp_path / "told").read_text().split()}
    assert {25 * word for word in range(160)} <= rows  # every row in use was fetched, and told
    assert not rows & {1, 2, 3, 7, 3999}, "rows that nobody changed were fetched again"


def test_clipped_rows_and_many_workers(make_trainer) -> None:
    torch.manual_seed(0)
    trainer = make_trainer(
        Reader(),
        optimizer=mh.optim.Adagrad(lr=0.1, clip_norm=1.0),
        strategy=mh.Downpour(
            replicas=2, workers=2, push_every=3, fetch_every=5, staleness="scale", compress="int8"
        ),
    )
    result = trainer.fit(texts(4096), validation=texts(1024, seed=1), epochs=6)
    assert result.metrics["accuracy"] > 0.8


def test_a_server_dies_among_rows(make_trainer, tmp_path: Path) -> None:
    torch.manual_seed(0)
    trainer = make_trainer(
        Reader(),
        optimizer=mh.optim.Adagrad(lr=0.1),
        strategy=mh.Downpour(
            replicas=2, servers=2, faults=mh.FaultPlan().kill("server/1", at_push=100)
        ),
    )
    result = trainer.fit(texts(4096), validation=texts(1024, seed=1), epochs=6)
    assert result.metrics["accuracy"] > 0.8
    assert events_of(tmp_path / "run", "FaultInjected")
    assert events_of(tmp_path / "run", "PrimaryMoved")


def test_a_run_with_rows_is_resumed(make_trainer, tmp_path: Path) -> None:
    torch.manual_seed(0)
    first = make_trainer(
        Reader(),
        optimizer=mh.optim.Adagrad(lr=0.1),
        strategy=mh.Downpour(replicas=2),
    )
    first.fit(texts(2048), epochs=3)
    resumed = make_trainer(
        Reader(),
        optimizer=mh.optim.Adagrad(lr=0.1),
        strategy=mh.Downpour(replicas=2, servers=2),
        run_dir=None,
    )
    result = resumed.fit(
        texts(2048), validation=texts(1024, seed=1), epochs=6, resume=tmp_path / "run"
    )
    assert result.metrics["accuracy"] > 0.8


# --- wide sparse layers

LABELS, FEATURES = 2000, 3000


def wide_net(share: str = "batch", *, chain: bool = True) -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Sequential(
        mh.sparse.SparseLinear(FEATURES, 24),
        nn.ReLU(),
        mh.sparse.LSHLinear(24, LABELS, sampling=mh.sparse.Sampling(limit=200), share=share),
    )
    return layers if chain else Wrapped(layers)


class Wrapped(nn.Module):
    """The same net, which the fast path does not know."""

    def __init__(self, layers: nn.Sequential) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: mh.sparse.CSR) -> torch.Tensor:
        return self.layers(x)


def labelled(samples: int, seed: int = 0) -> mh.data.Source:
    """Each label has five features of its own, of which a sample shows three, and two of noise."""
    generator = torch.Generator().manual_seed(seed)
    labels = (torch.rand(samples, generator=generator).square() * 300).long() * 6
    own = torch.randint(FEATURES, (LABELS, 5), generator=torch.Generator().manual_seed(7))
    shown = own[labels][:, torch.randperm(5, generator=generator)[:3]]
    noise = torch.randint(FEATURES, (samples, 2), generator=generator)
    features = torch.cat([shown, noise], 1).sort(1).values
    rows = [row.unique().tolist() for row in features]
    x = mh.sparse.CSR.from_lists(rows, width=FEATURES)
    return mh.data.sparse(x, labels)


@pytest.mark.parametrize(
    ("chain", "share", "form"),
    [
        (True, "batch", "native sparse layers"),
        (False, "batch", "PyTorch autograd"),
        (True, "sample", "PyTorch autograd"),
    ],
)
def test_a_wide_sparse_net_trains_while_a_server_dies(
    make_trainer, tmp_path: Path, chain: bool, share: str, form: str
) -> None:
    model = wide_net(share, chain=chain)
    start = [parameter.detach().clone() for parameter in model.parameters()]
    trainer = make_trainer(
        model,
        loss=mh.sparse.LSHSoftmaxLoss(),
        optimizer=mh.optim.Adagrad(lr=0.1),
        metrics=["accuracy"],
        batch_size=64,
        strategy=mh.Downpour(
            replicas=2, servers=2, faults=mh.FaultPlan().kill("server/0", at_push=60)
        ),
    )
    result = trainer.fit(labelled(6000), validation=labelled(600, seed=1), epochs=6)
    told = " ".join(event["message"] for event in events_of(tmp_path / "run", "Note"))
    assert "pushing gradients" in told
    assert form in told
    assert told.count(": rows") == 3  # both weights and the wide layer's bias
    assert events_of(tmp_path / "run", "PrimaryMoved")
    assert result.metrics["accuracy"] > 0.5
    for before, after in zip(start, model.parameters(), strict=True):
        assert after.isfinite().all()
        assert not torch.equal(before, after)
