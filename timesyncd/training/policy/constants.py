"""
The constants of `auto`, in one table: name, value, unit, meaning, and where the value is from.

`docs/reference/auto.md` is made of it (`timesyncd.cli.schemas`). A constant is declared here and nowhere else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar

_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True, slots=True)
class Constant:
    """`source`: the measurement or paper that the value is from, or that it is a choice."""

    name: str
    value: float
    unit: str
    meaning: str
    source: str


#: All of them, in the order of the page.
CONSTANTS: list[Constant] = []

_FITTED = "fitted with SGD: the four tasks of bench/policies, two and four ranks"
_ADAM = "fitted with AdamW, one seed: task `markov` of bench/policies"
_CHOSEN = "chosen"


def _constant(name: str, value: _Number, unit: str, meaning: str, source: str) -> _Number:
    CONSTANTS.append(Constant(name, value, unit, meaning, source))
    return value


SCATTER_PER_STEP = _constant(
    "SCATTER_PER_STEP",
    0.0018,
    "steps of BSP",
    "additional steps for each step between averagings, of two ranks with the same kind of data",
    f"{_FITTED}: 0.001 to 0.002 with two ranks, 0.004 to 0.005 with four",
)
RANKS_EXPONENT = _constant(
    "RANKS_EXPONENT",
    1.5,
    "",
    "it grows with (N/2) to this power",
    "Yu, Yang and Zhu, arXiv 1807.06629: the longest interval with which N ranks learn N times as fast",
)
DRIFT_PER_DISSIMILARITY = _constant(
    "DRIFT_PER_DISSIMILARITY",
    0.0006,
    "steps of BSP",
    "the same, times the dissimilarity squared, if ranks see different data",
    f"{_FITTED}, sorted digits: 0.02 with two ranks, 0.08 with three, 0.4 with four",
)
FIXED_DRIFT = _constant(
    "FIXED_DRIFT",
    0.75,
    "steps of BSP",
    "additional steps with different data, whatever the interval is",
    f"{_FITTED}, sorted digits, two ranks",
)
FIXED_DRIFT_FROM = _constant(
    "FIXED_DRIFT_FROM", 4.0, "dissimilarity", "from here on they count in full", f"{_FITTED}, sorted digits, two ranks"
)
NEGLIGIBLE_WAIT = _constant(
    "NEGLIGIBLE_WAIT", 0.04, "of computing", "BSP stays while ranks wait for less", f"{_CHOSEN}: nothing to gain"
)
RISING_RATE = _constant(
    "RISING_RATE",
    1.001,
    "factor",
    "the learning rate rises, in a warm-up, if it grew by this since the rows before: BSP stays",
    "Gu et al., ICLR 2024, Sec. 3, and Lin et al., ICLR 2020: averagings harm most while parameters change fast",
)
SEND_LESS_FROM = _constant(
    "SEND_LESS_FROM",
    0.25,
    "of computing",
    "with an adaptive optimizer less is sent if ranks wait for more",
    f"{_CHOSEN}: half of it saves a tenth of a step",
)
LOCAL_ADAM_EXPONENT = _constant(
    "LOCAL_ADAM_EXPONENT",
    0.5,
    "",
    "rare averagings under Adam need N to this power times BSP's steps, whatever the interval is",
    f"{_ADAM}: 1.1 to 1.6 times with two ranks for DES-LOC (kx 4 and 16), DiLoCo (h 16 and 64) and local SGD",
)
DES_LOC_PER_STEP = _constant(
    "DES_LOC_PER_STEP", 0.0018, "of these steps", "more for each step of kx, of two ranks", f"{_ADAM}: 0.0017"
)
DILOCO_PER_STEP = _constant(
    "DILOCO_PER_STEP", 0.0027, "of these steps", "more for each step of h, of two ranks", f"{_ADAM}: 0.0027"
)
CHANGE_GAIN = _constant(
    "CHANGE_GAIN",
    1.1,
    "factor",
    "with an adaptive optimizer another way to send must be predicted to be faster by this",
    f"{_CHOSEN}: the durations of transfers scatter by a tenth",
)
BARRED_UNTIL = _constant(
    "BARRED_UNTIL",
    2.0,
    "factor",
    "what was slower than BSP is no candidate until ranks wait for this many times as long",
    _CHOSEN,
)
MAX_VALIDATION_RISE = _constant(
    "MAX_VALIDATION_RISE",
    0.02,
    "of the lowest",
    "a validation loss that is larger by more takes a choice back",
    "what averagings cost a byte-level GPT with AdamW: 0.02 with two ranks, 0.05 with four",
)
MAX_VALIDATION_LAG = _constant(
    "MAX_VALIDATION_LAG",
    0.01,
    "of the predicted",
    "under Adam a validation loss that is larger than its course before predicts, by more, takes averagings back",
    f"{_CHOSEN}: half of what averagings cost a byte-level GPT",
)
MIN_VALIDATIONS = _constant(
    "MIN_VALIDATIONS", 3, "validations", "make a course, without which averagings are not tried under Adam", _CHOSEN
)
VALIDATIONS_RISEN = _constant(
    "VALIDATIONS_RISEN", 2, "in a row", "so many of them", f"{_CHOSEN}: a single one may be chance"
)
TRIAL_SHARE = _constant(
    "TRIAL_SHARE",
    1 / 8,
    "of the steps so far",
    "a trial of averagings under Adam takes so many, where no validation loss is recorded",
    f"{_CHOSEN}: with BSP_PER_TRIAL trials take at most a fifth of the steps so far",
)
BSP_PER_TRIAL = _constant(
    "BSP_PER_TRIAL", 4, "steps of BSP", "for each step of a trial, before it and after it", _CHOSEN
)
MIN_TRIAL_STEPS = _constant(
    "MIN_TRIAL_STEPS", 32, "steps", "of a trial at least, and two of its intervals", f"{_CHOSEN}: a row has 8 steps"
)
SETTLING_STEPS = _constant(
    "SETTLING_STEPS",
    24,
    "steps",
    "after a trial whose losses do not count",
    f"{_CHOSEN}: rows count 8 steps late, have 8 steps, and the optimizer's moments need as many",
)
MAX_LOSS_LAG = _constant(
    "MAX_LOSS_LAG",
    0.01,
    "of the loss",
    "trials show that averagings keep the loss up if it will surely not be higher by more, however long the job goes on",
    f"{_CHOSEN}: as MAX_VALIDATION_LAG",
)
TRIAL_ERROR_RATE = _constant(
    "TRIAL_ERROR_RATE", 0.05, "probability", "of a wrong answer of all trials together", _CHOSEN
)
SAME_DATA_BELOW = _constant(
    "SAME_DATA_BELOW",
    0.25,
    "dissimilarity",
    "below, the ranks see the same kind of data beyond doubt",
    f"{_FITTED}: the first four steps showed -0.6 to 0.6 with the same kind",
)
DIFFERENT_DATA_FROM = _constant(
    "DIFFERENT_DATA_FROM",
    1.0,
    "dissimilarity",
    "from here on they see different data",
    f"{_FITTED}: 4.0 to 6.7 with half of the classes on each of two ranks, 24 to 32 with a quarter on each of four",
)
UNTIMED_BSP_FACTOR = _constant(
    "UNTIMED_BSP_FACTOR",
    1.5,
    "factor",
    "until averagings are timed, a transfer takes this many times what BSP's ranks wait for",
    f"{_FITTED}: computing hides a part of a transfer, and shares processor and memory with it",
)
MIN_SPEEDUP = _constant(
    "MIN_SPEEDUP",
    1.1,
    "factor",
    "with different data averagings must be faster than BSP by this at first, and later not slower by it",
    f"{_CHOSEN}: the durations of transfers scatter by a tenth",
)
TRIAL_INTERVAL = _constant(
    "TRIAL_INTERVAL", 16, "steps", "a trial averages at this interval", f"{_CHOSEN}: longer ones show drift better"
)
TRIAL_AVERAGINGS = _constant("TRIAL_AVERAGINGS", 2, "averagings", "of a trial", _CHOSEN)
DRIFT_JUMP = _constant(
    "DRIFT_JUMP",
    0.1,
    "logarithm",
    "replicas drift apart if an averaging multiplies the loss by e to this",
    f"{_FITTED}: 1 of 15 trials showed more with the same kind of data, 1 of 60 less with different data",
)
DISSIMILARITY_PER_JUMP = _constant(
    "DISSIMILARITY_PER_JUMP",
    17.0,
    "dissimilarity",
    "if two averagings multiply the loss by e^j, the dissimilarity is this times j^2",
    f"{_FITTED}: gradients and trials on the same data",
)
CERTAIN_DISSIMILARITY = _constant(
    "CERTAIN_DISSIMILARITY",
    DISSIMILARITY_PER_JUMP * 0.3**2,
    "dissimilarity",
    "above, it is beyond doubt",
    f"{_FITTED}: no jump above 0.2 with the same kind of data, none below 0.4 with sorted digits",
)
MIN_JUMP = _constant(
    "MIN_JUMP", -0.99, "relative", "a loss that an averaging reduced to 0 counts as this jump", _CHOSEN
)
MIN_LINK_SHARE = _constant(
    "MIN_LINK_SHARE",
    0.5,
    "of waiting",
    "under BSP at least this share of the waiting is the link's, and the rest is for slower ranks",
    _CHOSEN,
)
MIN_INTERVAL = _constant("MIN_INTERVAL", 4, "steps", "the shortest interval with the same kind of data", _FITTED)
MAX_INTERVAL = _constant("MAX_INTERVAL", 64, "steps", "the longest interval", _FITTED)
MAX_BLOCKING_COST = _constant(
    "MAX_BLOCKING_COST", 0.25, "of the time", "averagings that ranks wait for cost at most this", _FITTED
)
OVERLAP_FROM_COST = _constant(
    "OVERLAP_FROM_COST",
    0.125,
    "of the time",
    "averagings run in the background if even the longest interval would cost more",
    _FITTED,
)
HALF_PRECISION_FROM = _constant(
    "HALF_PRECISION_FROM", 2.0, "steps", "transfers that take longer are sent in half precision", _FITTED
)
MAX_STEPS_WITHOUT_LOSS = _constant(
    "MAX_STEPS_WITHOUT_LOSS", 192, "steps", "without a loss, until it counts as not reported", _CHOSEN
)
LOSS_WINDOW = _constant("LOSS_WINDOW", 8, "rows", "whose losses make a geometric mean", _CHOSEN)
MAX_LOSS_RISE = _constant(
    "MAX_LOSS_RISE",
    math.log1p(0.25),
    "logarithm",
    "how far this mean may rise above its lowest value",
    _FITTED,
)
MAX_LOSS_ERRORS = _constant(
    "MAX_LOSS_ERRORS", 5.0, "standard errors", "the same, if that is more", f"{_CHOSEN}: losses of batches scatter"
)
SAME_DATA_AVERAGINGS = _constant(
    "SAME_DATA_AVERAGINGS",
    4,
    "averagings",
    "if so many lower the loss in the mean, the ranks see the same kind of data by now",
    _FITTED,
)
COST_HYSTERESIS = _constant("COST_HYSTERESIS", 1.25, "factor", "costs within it count as equal", _CHOSEN)
RECENT_ROWS = _constant(
    "RECENT_ROWS", 3, "rows", "the newest, whose median is the waiting and the duration of a step under BSP", _CHOSEN
)
KEPT_ROWS = _constant(
    "KEPT_ROWS", 9, "rows", "the newest, whose median is the duration of computing and of a transfer", _CHOSEN
)
INTERVAL_HYSTERESIS = _constant(
    "INTERVAL_HYSTERESIS",
    1.5,
    "factor",
    "the interval changes if another one is better by it, and by two steps",
    _CHOSEN,
)
MIN_STEPS_BETWEEN_CHANGES = _constant(
    "MIN_STEPS_BETWEEN_CHANGES", 32, "steps", "from one change to the next at least", _CHOSEN
)
RETRIAL_STEPS = _constant(
    "RETRIAL_STEPS",
    384,
    "steps",
    "averagings are tried again after so many, then after twice as many, and so on",
    f"{_CHOSEN}: two averagings may have misled, and replicas show their drift better later",
)
TOPK_RATIO = _constant("TOPK_RATIO", 0.01, "of the elements", "what top-k sends", _CHOSEN)
TOPK_STEPS_FACTOR = _constant(
    "TOPK_STEPS_FACTOR",
    1.26,
    "factor",
    "steps of BSP with top-k; half precision needs no more",
    f"{_FITTED}: 1.05 to 1.46, the geometric mean over three networks, two and four ranks",
)
HALF_PRECISION_COST = _constant(
    "HALF_PRECISION_COST", 0.5, "of the octets", "what half precision sends", "IEEE 754: 2 octets for 4"
)
UNTIMED_TOPK_FACTOR = _constant(
    "UNTIMED_TOPK_FACTOR",
    3.0,
    "of computing",
    "before top-k is timed a step counts as this, its additional steps included",
    f"{_CHOSEN}: how long it takes to choose the elements is not known yet",
)
