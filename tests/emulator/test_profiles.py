"""Device profiles: every number has its source, and what is unknown stays unknown."""

from __future__ import annotations

import pytest

from opwright.emulator.profiles import load_profile, profile_names
from opwright.spec.errors import UnknownNameError


def test_the_devices() -> None:
    assert profile_names() == ["a100", "br100", "br106m", "h100", "h200", "v100"]


@pytest.mark.parametrize("name", ["a100", "br100", "br106m", "h100", "h200", "v100"])
def test_every_number_has_a_source(name: str) -> None:
    profile = load_profile(name)
    assert set(profile.values) == set(profile.sources)
    assert all(profile.sources.values())


@pytest.mark.parametrize(
    ("name", "sms", "f32", "bandwidth", "shared_kib"),
    [
        ("v100", 80, 15.7e12, 900e9, 96),
        ("a100", 108, 19.5e12, 2039e9, 164),
        ("h100", 132, 66.9e12, 3350e9, 228),
        ("h200", 132, 66.9e12, 4800e9, 228),
    ],
)
def test_nvidia(name: str, sms: int, f32: float, bandwidth: float, shared_kib: int) -> None:
    profile = load_profile(name)
    assert profile.calibrated
    assert profile.get("sms") == sms
    assert profile.get("f32_flops") == f32
    assert profile.get("bytes_per_second") == bandwidth
    assert profile.get("shared_per_sm") == shared_kib * 1024


def test_published_figures_that_differ_are_a_range() -> None:
    assert load_profile("br100").get("bytes_per_second") == (1.64e12, 2.3e12)


def test_no_peaks_no_prediction() -> None:
    profile = load_profile("br106m")
    assert not profile.calibrated
    assert profile.get("bytes_per_second") is None
    assert profile.get("shared_per_block") == 32768


def test_an_unknown_device_names_those_there_are() -> None:
    with pytest.raises(UnknownNameError, match="h100"):
        load_profile("h1000")
