"""Update rules and learning-rate schedules: what a gradient does to a weight, and how fast."""

from manyhands.optim.rules import SGD, Adagrad, Adam, AdamW, Outer, Rule
from manyhands.optim.schedules import Constant, Cosine, OneCycle, Schedule, Steps

__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "Constant",
    "Cosine",
    "OneCycle",
    "Outer",
    "Rule",
    "Schedule",
    "Steps",
]
