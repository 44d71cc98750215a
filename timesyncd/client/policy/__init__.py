"""When to synchronize, as data and as pure functions; timesyncd.client.torch does what is decided here."""

from timesyncd.client.policy.compression import Compression, Fp16, Int8, PowerSGD, TopK
from timesyncd.client.policy.decision import Combine, Decision, Policy, Seen
from timesyncd.client.policy.fixed import BSP, QSR, Accumulate, FedAvg, LocalSGD, PostLocalSGD
from timesyncd.client.policy.selsync import SelSync
from timesyncd.client.policy.stale import ASP, SSP
from timesyncd.client.policy.written import Strategy, parse

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
