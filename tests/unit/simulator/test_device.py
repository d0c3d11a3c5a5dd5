"""The presets against their sources: FEATHER §3.2 for `gpu`, a measured table for `cpu`."""

from __future__ import annotations

import itertools
from dataclasses import asdict

import pytest

from plumage.errors import ConfigurationError
from plumage_engine.simulator.engine.device import (
    CPU,
    GPU,
    PRESETS,
    QUADRATIC_ATTENTION,
    Device,
    StepShape,
    make_device,
)


def batch(requests: int, prefix: int, *, groups: int = 1, suffix: int = 0, shared: int | None = None) -> StepShape:
    """Requests spread over groups of one prefix each, every request with its own suffix."""
    common = (prefix if groups == 1 else 0) if shared is None else shared
    if requests == 1:
        common = prefix + suffix
    return StepShape(
        decodes=requests,
        context=requests * (prefix + suffix),
        distinct=groups * prefix + requests * suffix,
        shared=common,
    )


def throughput(device: Device, shape: StepShape) -> float:
    return shape.decodes / device.seconds(shape)


class TestGpuAgainstFeather:
    def test_takeaway_1_one_stranger_among_500_nearly_halves_decode(self) -> None:
        homogeneous = throughput(GPU, batch(500, 10_000, suffix=20))
        one_stranger = throughput(GPU, batch(500, 10_000, groups=2, suffix=20))
        assert 1.8 <= homogeneous / one_stranger <= 2.1

    def test_takeaway_2_smooth_rise_with_the_prefix_shared_by_all(self) -> None:
        rates = []
        for tenth in range(11):
            prefix = 2000 * tenth // 10
            rates.append(throughput(GPU, batch(100, prefix, suffix=2000 - prefix)))
        steps = [after / before for before, after in itertools.pairwise(rates)]
        assert 1.55 <= rates[-1] / rates[0] <= 1.75
        assert all(1.0 < step < 1.12 for step in steps)

    def test_takeaway_3_flat_from_2_to_20_groups(self) -> None:
        rates = [throughput(GPU, batch(500, 10_000, groups=groups)) for groups in (2, 5, 10, 20)]
        assert min(rates) / max(rates) > 0.95

    @pytest.mark.parametrize("level", [500, 1000, 2000])
    def test_takeaway_4_only_the_top_level_of_the_tree_matters(self, level: int) -> None:
        """Exp. 4's trees: 4L shared by all; L, then 2 × 3L; L, 2 × L, 4 × 2L; L, 2 × L, 4 × L, 8 × L."""
        flat = throughput(GPU, batch(500, 4 * level))
        trees = []
        for distinct in (level + 2 * 3 * level, level * (1 + 2) + 4 * 2 * level, level * (1 + 2 + 4 + 8)):
            shape = StepShape(decodes=500, context=500 * 4 * level, distinct=distinct, shared=level)
            trees.append(throughput(GPU, shape))
        assert max(trees) < 0.8 * flat
        assert min(trees) / max(trees) > 0.95

    def test_takeaway_5_no_cliff_where_a_cache_level_would_end(self) -> None:
        """One cliff only, from one group to two, at any size of the KV cache."""
        for prefix in (1000, 2000, 4000, 8000):
            rates = [throughput(GPU, batch(500, prefix, groups=groups)) for groups in (1, 2, 4, 8, 16)]
            assert rates[0] / rates[1] > 1.3
            assert min(rates[1:]) / max(rates[1:]) > 0.95

    def test_takeaway_6_full_homogeneity_gains_out_of_proportion(self) -> None:
        """Exp. 6 at f1 = 0.8: 500 × 10k tokens, 80 % shared by all; 0–100 % of the requests also share the suffix."""

        def rate(same_suffix: float) -> float:
            groups = 1 if same_suffix == 1 else 51
            return throughput(
                GPU,
                StepShape(
                    decodes=500,
                    context=500 * 10_000,
                    distinct=8000 + groups * 2000,
                    shared=10_000 if same_suffix == 1 else 8000,
                ),
            )

        assert rate(0.0) == pytest.approx(rate(0.8), rel=0.05)
        assert rate(1.0) > 1.15 * rate(0.8)

    def test_takeaway_7_throughput_saturates_later_and_higher_when_homogeneous(self) -> None:
        sizes = range(5, 501, 5)

        def curve(groups: int) -> list[float]:
            return [throughput(GPU, batch(size, 10_000, groups=groups)) for size in sizes]

        homogeneous, heterogeneous = curve(1), curve(5)
        assert homogeneous[-1] > 1.5 * heterogeneous[-1]
        assert homogeneous[-1] / homogeneous[len(sizes) // 2] < 1.1

        def saturation(rates: list[float]) -> int:
            return next(size for size, rate in zip(sizes, rates, strict=True) if rate >= 0.8 * rates[-1])

        assert saturation(heterogeneous) < saturation(homogeneous)

    def test_takeaway_8_moderate_homogeneous_batches_beat_large_mixed_ones_and_tiny_ones_do_not(self) -> None:
        mixed = throughput(GPU, batch(800, 10_000, groups=8))
        assert throughput(GPU, batch(100, 10_000)) > 1.3 * mixed
        assert throughput(GPU, batch(50, 10_000)) > mixed
        assert throughput(GPU, batch(25, 10_000)) < mixed

    def test_prefill_of_8b_on_an_l40_is_5_to_8_thousand_tokens_a_second(self) -> None:
        for length in (2048, 8192):
            seconds = GPU.seconds(StepShape(prefill_tokens=length, prefill_pairs=length * length / 2))
            assert 5000 < length / seconds < 8000

    def test_kv_token_has_the_size_that_feather_states(self) -> None:
        """§3.1: "a 10k-token request generates 1.2 GB of KV cache": 1.22 GiB."""
        assert 10_000 * GPU.kv_bytes_per_token / 2**30 == pytest.approx(1.22, abs=0.01)


MEASURED = [  # context, groups, sorted by group, decode tokens/s
    (2048, 1, False, 1039),
    (2048, 2, False, 859),
    (2048, 4, False, 655),
    (2048, 8, False, 441),
    (2048, 16, False, 335),
    (2048, 2, True, 916),
    (2048, 4, True, 756),
    (2048, 8, True, 520),
    (4096, 1, False, 624),
    (4096, 2, False, 495),
    (4096, 4, False, 359),
    (4096, 8, False, 229),
    (4096, 16, False, 183),
    (4096, 2, True, 518),
    (4096, 4, True, 399),
    (4096, 8, True, 284),
]


@pytest.mark.parametrize(("context", "groups", "ordered", "measured"), MEASURED)
def test_cpu_against_the_measured_table(context: int, groups: int, ordered: bool, measured: int) -> None:
    shape = batch(16, context, groups=groups)
    shape.ordered = ordered
    assert throughput(CPU, shape) == pytest.approx(measured, rel=0.06)


class TestPresetsAreFrozen:
    """The presets were fixed before any policy was tuned, and their constants never change: a device that moves with
    the policies proves nothing. Another device is a named override (decision 0050), never a new number here.
    """

    def test_constants_of_both_presets(self) -> None:
        assert set(PRESETS) == {"gpu", "cpu"}
        assert asdict(PRESETS["gpu"]) == {
            "fixed": 0.003,
            "weights": 0.0218681917211329,
            "row": 0.00014788213627992634,
            "pair": 4.827697974217311e-09,
            "first_read": 1.7847494553376906e-07,
            "kv_bytes_per_token": 131072,
            "pcie": 25e9,
            "time_scale": 1.0,
            "reread_all": 6.37410519763461e-08,
            "reread_some": 1.3220366335834743e-07,
        }
        assert asdict(PRESETS["cpu"]) == {
            "fixed": 0.002,
            "weights": 0.0,
            "row": 0.0002,
            "pair": 1.6384e-07,
            "first_read": 1.26e-06,
            "kv_bytes_per_token": 16384,
            "pcie": 10e9,
            "time_scale": 1.0,
            "reread": 2.5e-07,
            "exponent": 1.2,
        }
        assert QUADRATIC_ATTENTION == 7.4785202741622925

    @pytest.mark.parametrize(
        ("shape", "gpu", "cpu"),
        [
            (StepShape(decodes=1, context=1000, distinct=1000), 0.02504666666666667, 0.0034600000000000004),
            (
                StepShape(decodes=16, context=32768, distinct=8192, shared=512),
                0.02905350285022651,
                0.025263981372937696,
            ),
            (
                StepShape(decodes=16, context=32768, distinct=8192, ordered=True),
                0.02957929570564028,
                0.021665919999999998,
            ),
            (
                StepShape(prefill_tokens=2048, prefill_pairs=2048**2 / 2, pcie_bytes=1e9),
                0.3159870315633149,
                0.75519738368,
            ),
        ],
    )
    def test_formula_of_the_constants(self, shape: StepShape, gpu: float, cpu: float) -> None:
        """Seconds of four steps: the same constants in another formula would be another device."""
        assert GPU.seconds(shape) == pytest.approx(gpu, rel=1e-12)
        assert CPU.seconds(shape) == pytest.approx(cpu, rel=1e-12)


class TestVariants:
    def test_time_scale_stretches_every_step(self) -> None:
        shape = batch(16, 1000, groups=3)
        assert make_device("gpu", time_scale=2.5).seconds(shape) == pytest.approx(2.5 * GPU.seconds(shape))

    def test_quadratic_attention_doubles_the_prefill_of_8192_tokens(self) -> None:
        shape = StepShape(prefill_tokens=8192, prefill_pairs=8192 * 8192 / 2)
        device = make_device("gpu", attention=QUADRATIC_ATTENTION)
        linear = 8192 * GPU.row
        assert device.seconds(shape) == pytest.approx(2 * linear, rel=0.01)

    def test_pcie_counts_when_it_is_longer_than_the_compute(self) -> None:
        idle = StepShape(decodes=1, context=100, distinct=100)
        copying = StepShape(decodes=1, context=100, distinct=100, pcie_bytes=25e9)
        hidden = StepShape(decodes=1, context=100, distinct=100, pcie_bytes=25e6)
        assert GPU.seconds(copying) == pytest.approx(1.0)
        assert GPU.seconds(hidden) == GPU.seconds(idle)

    @pytest.mark.parametrize(
        ("options", "names"),
        [
            ({"preset": "tpu"}, "device.preset"),
            ({"preset": "gpu", "warp": 3.0}, "device.warp"),
            ({"preset": "cpu", "time_scale": 0.0}, "device.time_scale"),
            ({"preset": "gpu", "fixed": -1.0}, "device.fixed"),
        ],
    )
    def test_wrong_setting_is_named(self, options: dict[str, object], names: str) -> None:
        with pytest.raises(ConfigurationError, match=names):
            make_device(**options)  # type: ignore[arg-type]
