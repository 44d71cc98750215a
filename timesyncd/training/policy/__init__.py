"""When to synchronize, as data and as pure functions; timesyncd.client.torch does what is decided here."""

from timesyncd.training.policy.compression import Compression, Fp16, Int8, PowerSGD, TopK
from timesyncd.training.policy.decision import Combine, Decision, Policy, Seen
from timesyncd.training.policy.policies import BSP, QSR, Accumulate, FedAvg, LocalSGD, PostLocalSGD
from timesyncd.training.policy.selsync import SelSync
from timesyncd.training.policy.stale import ASP, SSP
from timesyncd.training.policy.text import Strategy, parse

__all__ = [
    "ASP",
    "BSP",
    "QSR",
    "SSP",
    "Accumulate",
    "Combine",
    "Compression",
    "Decision",
    "FedAvg",
    "Fp16",
    "Int8",
    "LocalSGD",
    "Policy",
    "PostLocalSGD",
    "PowerSGD",
    "Seen",
    "SelSync",
    "Strategy",
    "TopK",
    "parse",
]
