"""Train an ordinary PyTorch module on every core of this machine."""

import torch
from torch import nn

import manyhands as mh


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 16, 5, stride=2)
        self.norm = nn.BatchNorm2d(16)
        self.out = nn.Linear(16 * 12 * 12, 10)

    def forward(self, x):
        return self.out(torch.relu(self.norm(self.conv(x))).flatten(1))


trainer = mh.Trainer(
    Net(),
    loss=nn.CrossEntropyLoss(),
    optimizer=mh.optim.SGD(lr=0.05, momentum=0.9),
    strategy=mh.Downpour(replicas=2, servers=2),
)
result = trainer.fit(mh.data.mnist("train"), validation=mh.data.mnist("test"), epochs=3)
print(f"{result.accuracy:.2%}, everything about the run is in {result.run_dir}")
