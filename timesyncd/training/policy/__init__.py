"""When to synchronize, as data and pure functions. `timesyncd.training.torch` carries out what is decided here."""

from timesyncd.training.policy.policies import (
    ASP,
    BSP,
    QSR,
    SSP,
    Accumulate,
    ChangeReason,
    Combine,
    Decision,
    FedAvg,
    LocalSGD,
    Policy,
    PolicyContext,
    PostLocalSGD,
)
from timesyncd.training.policy.selsync import SelSync
from timesyncd.training.policy.text import Compression, Fp16, Int8, PowerSGD, Strategy, TopK, parse_policy

__all__ = [
    "ASP",
    "BSP",
    "QSR",
    "SSP",
    "Accumulate",
    "ChangeReason",
    "Combine",
    "Compression",
    "Decision",
    "FedAvg",
    "Fp16",
    "Int8",
    "LocalSGD",
    "Policy",
    "PolicyContext",
    "PostLocalSGD",
    "PowerSGD",
    "SelSync",
    "Strategy",
    "TopK",
    "parse_policy",
]
