"""Manyhands: deep-network training on the CPUs people already have."""

from manyhands import data, errors, optim
from manyhands.callbacks import Callback, EarlyStopping, RunView
from manyhands.strategies import EMA, Hogwild, Strategy, Synchronous
from manyhands.trainer import Result, Trainer

__all__ = [
    "EMA",
    "Callback",
    "EarlyStopping",
    "Hogwild",
    "Result",
    "RunView",
    "Strategy",
    "Synchronous",
    "Trainer",
    "data",
    "errors",
    "optim",
]
