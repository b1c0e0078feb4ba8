import numpy as np
import pytest
from scipy import integrate, special, stats

from keras_sslhsic.hsic import bessel


@pytest.mark.parametrize("order", [0.0, 0.5, 12.0, 30.5, 63.5, 127.5])
def test_log_bessel_agrees_with_scipy_where_that_does_not_overflow(order):
    x = np.array([20.0, 60.0, 150.0, 400.0])
    np.testing.assert_allclose(bessel.log_bessel_k(order, x), np.log(special.kve(order, x)) - x, atol=1e-6)


def test_half_integer_order_has_a_closed_form():
    x = np.array([0.01, 1.0, 30.0])
    np.testing.assert_allclose(bessel.log_bessel_k(0.5, x), 0.5 * np.log(np.pi / (2 * x)) - x)


def test_no_overflow_at_high_dimensions():
    amplitudes, p = bessel.grid(4096)
    assert np.all(np.isfinite(p)) and p.sum() == pytest.approx(1.0)
    assert np.all(np.isfinite(bessel.log_density(16384, amplitudes)))


@pytest.mark.parametrize(("dim", "lost"), [(256, 0.0), (1024, 0.0018), (2048, 0.0271), (4096, 0.118)])
def test_mass_beyond_the_grid(dim, lost):
    assert bessel.lost_mass(dim) == pytest.approx(lost, abs=5e-4)
    rng = np.random.default_rng(0)
    sample = np.abs(rng.normal(size=100_000)) * np.sqrt(rng.chisquare(dim, size=100_000))
    assert np.mean(sample > bessel.GRID_END) == pytest.approx(lost, abs=4e-3)


@pytest.mark.parametrize(("dim", "end", "lost"), [(1024, 120, 0.018), (2048, 150, 0.093), (4096, 200, 0.18)])
def test_mass_beyond_the_papers_wider_grid(dim, end, lost):
    """In per cent, to the digits that are stated: by the mixture, and by the Bessel density itself."""
    assert bessel.paper_grid_end(dim) == end and bessel.paper_grid_end(dim - 1) < end
    assert float(f"{100 * bessel.lost_mass(dim, end):.2g}") == lost
    # |x| chi_n beyond 12 sqrt(n) is as rare as |x| > 12.
    beyond, _ = integrate.quad(
        lambda a: np.exp(bessel.log_density(dim, a)), end, 12 * np.sqrt(dim), limit=200
    )
    assert float(f"{100 * beyond:.2g}") == lost


def test_the_papers_grid_is_the_released_codes_at_its_own_size():
    assert bessel.paper_grid_end(256) == bessel.paper_grid_end(128) == bessel.GRID_END


def test_grid_samples_follow_the_density_where_the_grid_holds_it():
    w = bessel.sample_frequencies(16, 4000, np.random.default_rng(0), scale=0.5)
    rng = np.random.default_rng(1)
    exact = np.abs(rng.normal(size=4000)) * np.sqrt(rng.chisquare(16, size=4000))
    assert stats.ks_2samp(0.5 * np.linalg.norm(w, axis=1), exact).pvalue > 1e-3
