"""Data serving: where samples come from and how they change on the way (Adam, section 3.1).

    train = mh.data.mnist("train").augmented(mh.data.Augment.digits())
    train, validation = mh.data.split(mh.data.images("flowers", size=64), 0.1)
    train = mh.data.extreme("amazon_train.txt.gz", bad_lines="skip")

`source.py` is the interface that trainers see; each other file is one kind of source, or one thing
done to its samples.
"""

from manyhands.data.accept import as_source
from manyhands.data.arrays import ArraySource, arrays
from manyhands.data.augment import Augment
from manyhands.data.datasets.mnist import mnist
from manyhands.data.datasets.packages import packages
from manyhands.data.datasets.synthetic import synthetic_670k
from manyhands.data.extreme import ExtremeSource, extreme
from manyhands.data.idx import idx
from manyhands.data.images import ImageSource, images
from manyhands.data.prefetch import Prefetcher, Request
from manyhands.data.source import Source, epoch_order
from manyhands.data.sparse_source import SparseSource, sparse
from manyhands.data.torch_dataset import from_dataset
from manyhands.data.views import split

__all__ = [
    "ArraySource",
    "Augment",
    "ExtremeSource",
    "ImageSource",
    "Prefetcher",
    "Request",
    "Source",
    "SparseSource",
    "arrays",
    "as_source",
    "epoch_order",
    "extreme",
    "from_dataset",
    "idx",
    "images",
    "mnist",
    "packages",
    "sparse",
    "split",
    "synthetic_670k",
]
