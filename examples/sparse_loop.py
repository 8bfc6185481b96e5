"""Sparse layers in a plain PyTorch loop: predict what a Debian package depends on."""

import torch
from torch import nn

import manyhands as mh

train, test = mh.data.packages("train"), mh.data.packages("test")
torch.manual_seed(0)
net = nn.Sequential(
    mh.sparse.SparseLinear(train.features.width, 128),
    nn.ReLU(),
    mh.sparse.LSHLinear(128, train.labels.width),
)
loss_of = mh.sparse.LSHSoftmaxLoss()
optimizer = mh.sparse.RowOptimizer(net.parameters(), mh.optim.Adam(lr=0.003))

for epoch in range(3):
    total = 0.0
    for chosen in torch.randperm(len(train)).split(256):
        optimizer.zero_grad()
        loss = loss_of(net(train.features[chosen]), train.labels[chosen])
        loss.backward()
        optimizer.step()
        total += loss.item() * len(chosen)
    print(f"epoch {epoch}: loss {total / len(train):.3f}")

net.eval()
some = torch.randperm(len(test))[:1000]
with torch.no_grad():
    hidden = net[:2](test.features[some])
_, best = net[2].topk(hidden, 1)
right = test.labels[some].to_dense().gather(1, best).mean()
print(f"P@1 {right:.1%}; the tables alone find {net[2].recall(hidden, 1):.0%} of the best answers")
