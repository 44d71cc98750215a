"""Policies as text: they survive a round trip, and an invalid text gives an error of one line."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timesyncd.training.policy.auto import Auto
from timesyncd.training.policy.policies import ASP, BSP, QSR, SSP, Accumulate, FedAvg, LocalSGD, PostLocalSGD
from timesyncd.training.policy.selsync import SelSync
from timesyncd.training.policy.text import (
    COMPRESSIONS,
    MAX_TEXT,
    POLICIES,
    Fp16,
    Int8,
    PowerSGD,
    Strategy,
    TopK,
    parse_policy,
)

COUNT = st.integers(1, 10**6)
SHARE = st.floats(0, 1, exclude_min=True)
INSIDE = st.floats(0, 1, exclude_min=True, exclude_max=True)
POSITIVE = st.floats(0, exclude_min=True, allow_nan=False)
LOCAL = COUNT.flatmap(lambda h: st.builds(LocalSGD, st.just(h), st.integers(0, h - 1)))
SMOOTHED = {"late": st.integers(0, 99), "aggregate": st.sampled_from(["parameters", "gradients"])}
SELSYNC = st.one_of(
    st.builds(SelSync, delta=st.floats(0, allow_nan=False), smoothing=st.none() | SHARE, **SMOOTHED),
    st.builds(SelSync, quantile=INSIDE, smoothing=st.none() | SHARE, **SMOOTHED),
)
POLICY = st.one_of(
    *[st.just(policy) for policy in (Auto(), BSP(), ASP())],
    *[LOCAL, SELSYNC, st.builds(Accumulate, COUNT), st.builds(PostLocalSGD, st.integers(0, 10**6), COUNT)],
    *[st.builds(FedAvg, SHARE, POSITIVE), st.builds(QSR, COUNT, POSITIVE), st.builds(SSP, st.integers(0, 10**6))],
)
COMPRESSION = st.one_of(
    st.none(), st.just(Fp16()), st.just(Int8()), st.builds(PowerSGD, COUNT), st.builds(TopK, st.none() | SHARE)
)


@given(POLICY, COMPRESSION)
def test_a_policy_survives_the_round_trip(policy: Any, compression: Any) -> None:
    """Every policy with every compression, if it fits into a plan; otherwise it is rejected."""
    strategy = Strategy(policy, compression)
    if len(str(strategy)) <= MAX_TEXT:
        assert parse_policy(str(strategy)) == strategy
    else:
        with pytest.raises(ValueError, match="at most 96 are allowed"):
            parse_policy(str(strategy))


@pytest.mark.parametrize(
    ("text", "strategy"),
    [
        ("bsp", Strategy(BSP())),
        (" bsp ( ) ", Strategy(BSP())),
        ("accumulate(k=4)", Strategy(Accumulate(4))),
        ("local_sgd( h = 8 ,delay=2 )+fp16", Strategy(LocalSGD(8, 2), Fp16())),
        ("post_local_sgd(start=100, h=8)", Strategy(PostLocalSGD(100, 8))),
        ("fedavg(e=.25, c=1)", Strategy(FedAvg(1.0, 0.25))),
        ("qsr(h=4, alpha=2e-2) + int8", Strategy(QSR(4, 0.02), Int8())),
        ("ssp(s=2)", Strategy(SSP(2))),
        ("selsync(delta=0.3)", Strategy(SelSync(delta=0.3))),
        ("selsync(quantile=0.94, late=2, aggregate=gradients)", Strategy(SelSync(None, 0.94, 2, "gradients"))),
        ("selsync(quantile=0.9) + topk(ratio=0.01)", Strategy(SelSync(quantile=0.9), TopK(0.01))),
        ("auto + powersgd(rank=2)", Strategy(Auto(), PowerSGD(2))),
        ("bsp + topk", Strategy(BSP(), TopK())),
    ],
)
def test_spaces_order_and_defaults_do_not_matter(text: str, strategy: Strategy) -> None:
    """Parameters with their default value may be omitted."""
    assert parse_policy(text) == strategy
    assert parse_policy(str(strategy)) == strategy


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "'' is unknown; allowed: auto, bsp, accumulate"),
        ("bsb", "'bsb' is unknown; allowed: "),
        ("BSP", "'BSP' is unknown; allowed: "),
        ("bsp(", "is unknown; allowed: "),
        ("bsp +", "'' is unknown; allowed: fp16, powersgd, topk, int8"),
        ("bsp + zip", "'zip' is unknown; allowed: fp16"),
        ("bsp + topk + int8", r"'topk \+ int8' is unknown; allowed: "),
        ("fp16 + bsp", "'fp16' is unknown; allowed: auto, bsp"),
        ("bsp(k=1)", r"bsp \(no parameters\): 'k=1' is not allowed"),
        ("accumulate", r"accumulate\(k\): k must be given"),
        ("accumulate(4)", "'4' is not allowed"),
        ("accumulate(k=)", "accumulate.*k is ''; it must be an integer"),
        ("accumulate(k=4, k=5)", "'k=5' is not allowed; write each parameter once"),
        ("accumulate(k=0)", "k is 0; it must be at least 1"),
        ("local_sgd(h=2.5)", "h is '2.5'; it must be an integer"),
        ("fedavg(c=x, e=1)", "c is 'x'; it must be a number"),
        ("local_sgd(h=3, delay=3)", "below h=3"),
        ("local_sgd(h=3, delay=-1)", "delay is -1; it must be at least 0"),
        ("post_local_sgd(start=-1, h=3)", "start is -1; it must be at least 0"),
        ("fedavg(c=0, e=1)", "0 < c <= 1"),
        ("fedavg(c=nan, e=1)", "0 < c <= 1"),
        ("fedavg(c=1, e=nan)", "0 < c <= 1"),
        ("qsr(h=1, alpha=nan)", "alpha is nan"),
        ("ssp(s=-1)", "s is -1; it must be at least 0"),
        ("selsync", "one of delta and quantile"),
        ("selsync(delta=1, quantile=.5)", "one of delta and quantile"),
        ("selsync(delta=nan)", "delta is nan"),
        ("selsync(delta=-0.1)", "delta is -0.1"),
        ("selsync(quantile=1)", "quantile is 1.0; it must be above 0 and below 1"),
        ("selsync(quantile=0)", "quantile is 0.0; it must be above 0 and below 1"),
        ("selsync(delta=1, late=-1)", "late is -1; it must be at least 0"),
        ("selsync(delta=1, smoothing=0)", "smoothing is 0.0"),
        ("selsync(delta=1, aggregate=both)", "parameters or gradients"),
        ("selsync(delta=1, aggregate=a\nb)", "parameters or gradients"),
        ("bsp + topk(ratio=2)", "ratio is 2.0"),
        ("bsp + powersgd(rank=0)", "rank is 0"),
        ("bsp" + " " * 94, "at most 96 are allowed"),
        ("é" * 49, "at most 96 are allowed"),
    ],
)
def test_an_invalid_text_gives_an_error_of_one_line(text: str, expected: str) -> None:
    """It names the part that is wrong, and what is allowed."""
    with pytest.raises(ValueError, match=expected) as raised:
        parse_policy(text)
    assert "\n" not in str(raised.value)


def test_the_normalized_text_must_fit_into_a_plan() -> None:
    """A text that is short only because it omits spaces and zeros is rejected before any rank gets it."""
    text = "selsync(quantile=.12345678901,late=100000,aggregate=gradients,smoothing=.123456789)+topk(ratio=.012)"
    short = text.replace("01,late", ",late").replace("6789)", ")")
    assert len(short) <= MAX_TEXT
    with pytest.raises(ValueError, match="at most 96 are allowed"):
        parse_policy(short)


@given(
    st.text(max_size=60)
    | st.from_regex(r"[a-z_]{2,9}\([a-z]{1,8}=[0-9.e+\-a-z]{0,9}(, ?[a-z]{1,9}=.{0,6})?\)( \+ .*)?")
)
def test_any_text_is_a_policy_or_a_value_error(text: str) -> None:
    """Nothing else comes of it, whatever a plan contains."""
    try:
        strategy = parse_policy(text)
    except ValueError as error:
        assert re.search("policy|octets|utf-8", str(error))
        assert len(str(error).splitlines()) == 1
    else:
        assert parse_policy(str(strategy)) == strategy


def test_every_name_is_a_policy_or_a_compression() -> None:
    """No name is both."""
    assert not POLICIES.keys() & COMPRESSIONS.keys()
    assert {kind.__name__ for kind in POLICIES.values()} == {
        *("Auto", "BSP", "Accumulate", "LocalSGD", "PostLocalSGD", "FedAvg", "QSR", "SSP", "ASP", "SelSync"),
        *("DiLoCo", "StreamingDiLoCo", "DESLOC"),
    }
