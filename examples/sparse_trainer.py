"""Sparse layers with a Trainer: predict what a Debian package depends on, on every core."""

from torch import nn

import manyhands as mh

train, test = mh.data.packages("train"), mh.data.packages("test")
net = nn.Sequential(
    mh.sparse.SparseLinear(train.features.width, 128),
    nn.ReLU(),
    mh.sparse.LSHLinear(128, train.labels.width),
)
trainer = mh.Trainer(
    net,
    loss=mh.sparse.LSHSoftmaxLoss(),
    optimizer=mh.optim.Adam(lr=0.003),
    strategy=mh.Hogwild(),
    metrics=("p@1", "p@5"),
    batch_size=256,
)
result = trainer.fit(train, validation=test, epochs=3)
print(f"P@1 {result.metrics['p@1']:.1%}, everything about the run is in {result.run_dir}")
