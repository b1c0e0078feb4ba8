"""What the paper states about its estimators and its loss, looked at on outputs of the bundled encoder, within a minute."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from keras_sslhsic import analysis, hsic, views
from keras_sslhsic.analysis.sphere import unit
from keras_sslhsic.data import bundled
from keras_sslhsic.hsic import kernels
from keras_sslhsic.hsic.uniform import uniform_mean
from keras_sslhsic.runs import trials
from keras_sslhsic.training.encoding import unit_range
from keras_sslhsic.zoo import load_pretrained

_IMAGES, _VIEWS = 128, 8  # the finite data set that everything is known of
_ROUNDING = 1e-9  # of float64, with thousands of terms of order 1


@dataclasses.dataclass(frozen=True)
class Claim:
    """A statement of the paper, and what the data here say of it.

    Attributes:
        section: of the paper.
        statement: in a sentence.
        verdict: shown, not shown or contradicted.
        found: the numbers, in a sentence.
    """

    section: str
    statement: str
    verdict: str
    found: str


@functools.cache
def outputs() -> np.ndarray:
    """Directions of centred features of the bundled encoder: 8 views of each of 128 images, float64 [128, 8, F]."""
    encoder = load_pretrained("r18_fashion")
    images = unit_range(tf.constant(bundled.load()[0][0][:_IMAGES]))
    policy = dataclasses.replace(
        views.grayscale(28), mean=(0.0,), std=(1.0,)
    )  # the encoder normalises by itself
    drawn: list[tf.Tensor] = []
    for seed in range(_VIEWS // policy.num_views):
        drawn += views.policy.make_views(images, policy, tf.constant([0, seed]))
    pixels = [np.rint(255.0 * np.asarray(view)).clip(0, 255).astype(np.uint8) for view in drawn]
    features = np.stack([encoder.predict(x, verbose=0) for x in pixels], axis=1)
    return unit(features - features.mean((0, 1)))


@functools.cache
def _kernel() -> kernels.Kernel:
    z = outputs()
    return kernels.InverseMultiquadric(analysis.median_scale(z.reshape(-1, z.shape[-1])))


def _exponent(
    population: float, unbiased: bool, second: bool
) -> tuple[dict[int, tuple[float, float]], list[float]]:
    """The bias of an estimator by batch size, with its standard error; and the 95 % interval of the power of the batch size."""
    z, kernel, generator = tf.constant(outputs()), _kernel(), np.random.default_rng(0)

    def one(index: tf.Tensor) -> tf.Tensor:
        batch = tf.gather_nd(z, index)
        if second:
            return hsic.hsic_zz(batch, kernel)
        return hsic.hsic_zy(batch, kernel, unbiased=unbiased, dataset_size=_IMAGES if unbiased else None)

    @tf.function(input_signature=[tf.TensorSpec([None, None, 2, 2], tf.int32)])
    def estimate(indices: tf.Tensor) -> tf.Tensor:
        return tf.map_fn(one, indices, fn_output_signature=tf.float64)

    sizes, errors = (4, 8, 16, 32, 64), {}
    for size in sizes:
        images = np.argsort(generator.random([600, _IMAGES]), axis=1)[:, :size]
        drawn = generator.integers(0, _VIEWS, [600, size, 2])
        indices = np.stack([np.broadcast_to(images[..., None], drawn.shape), drawn], axis=-1)
        errors[size] = estimate(tf.constant(indices, tf.int32)).numpy() - population
    slopes = []
    for _ in range(400):
        means = [np.mean(generator.choice(errors[size], 600)) for size in sizes]
        slopes.append(np.polyfit(np.log(sizes), np.log(np.abs(means)), 1)[0])
    found = {size: (float(e.mean()), float(e.std(ddof=1) / np.sqrt(len(e)))) for size, e in errors.items()}
    return found, [float(q) for q in np.quantile(slopes, [0.025, 0.975])]


def _population() -> analysis.InfoNCE:
    z = outputs()
    k = analysis.kernel_matrix(z.reshape(-1, z.shape[-1]), _kernel())
    return analysis.info_nce(k, np.repeat(np.arange(_IMAGES), _VIEWS))


def _of_order(biases: dict[int, tuple[float, float]], power: Sequence[float]) -> tuple[str, str]:
    verdict = (
        "shown"
        if power[0] <= -1 <= power[1] or power[1] < -1
        else "contradicted"
        if power[0] > -0.5
        else "not shown"
    )
    values = ", ".join(f"{mean:.2g} at {size}" for size, (mean, _) in biases.items())
    return (
        verdict,
        f"bias {values} images; in proportion to B to the power of {power[0]:.2f} to {power[1]:.2f}",
    )


def biased_zy() -> Claim:
    """Corollary of A.2."""
    verdict, found = _of_order(*_exponent(_population().hsic_zy, unbiased=False, second=False))
    return Claim("A.2", "The estimator of HSIC(Z, Y) has a bias of order 1/B.", verdict, found)


def unbiased_zy() -> Claim:
    """Theorem A.2."""
    population = _population().hsic_zy
    biases, _ = _exponent(population, unbiased=True, second=False)
    worst = max(abs(mean) / error for mean, error in biases.values())
    values = ", ".join(f"{mean:.1g} ± {1.96 * error:.1g} at {size}" for size, (mean, error) in biases.items())
    # Five of them: below 3 standard errors with 99 %.
    verdict = "shown" if worst < 3 else "contradicted"
    return Claim(
        "A.2",
        "The other estimator of HSIC(Z, Y), for B of N images, has none.",
        verdict,
        f"bias {values} images; HSIC {population:.3f}",
    )


def biased_zz() -> Claim:
    """Theorem A.3."""
    verdict, found = _of_order(*_exponent(_population().hsic_zz, unbiased=False, second=True))
    return Claim("A.3", "The estimator of HSIC(Z, Z) has a bias of order 1/B.", verdict, found)


def info_nce_bound() -> Claim:
    """Theorem B.1."""
    slack, as_printed = [], []
    for found, gamma in _info_nces():
        slack.append(found.loss - found.lower_bound(gamma))
        remainder = -found.hsic_zy + gamma * found.hsic_zz - found.lower_bound(gamma)
        as_printed.append(slack[-1] - 2 * remainder)
    verdict = "shown" if min(slack) > -_ROUNDING else "contradicted"
    return Claim(
        "B.1",
        "-HSIC(Z, Y) + gamma HSIC(Z, Z) is below InfoNCE, but for a term of second order in the variance.",
        verdict,
        f"InfoNCE is above the bound by {min(slack):.2g} to {max(slack):.2g}, with cosines over temperatures 0.1 to 1 and "
        f"with both kernels; with the sign of the last term as the theorem prints it, by {min(as_printed):.2g} and more",
    )


def _info_nces() -> list[tuple[analysis.InfoNCE, float]]:
    z = outputs().reshape(_IMAGES * _VIEWS, -1)
    images = np.repeat(np.arange(_IMAGES), _VIEWS)
    cosines = [
        (analysis.info_nce(z @ z.T / t, images), analysis.bound_gamma(1 / t)) for t in (0.1, 0.2, 0.5, 1.0)
    ]
    of_kernels = [
        (analysis.info_nce(analysis.kernel_matrix(z, kernel), images), 1 / 3)
        for kernel in (_kernel(), kernels.Gaussian(_kernel().scale))
    ]
    return cosines + of_kernels


def info_nce_taylor() -> Claim:
    """Equation 6, B.1."""
    z = outputs().reshape(_IMAGES * _VIEWS, -1)
    images = np.repeat(np.arange(_IMAGES), _VIEWS)
    errors = {}
    for temperature in (0.1, 0.2, 0.5, 1.0, 2.0, 5.0):
        found = analysis.info_nce(z @ z.T / temperature, images)
        errors[temperature] = abs(found.loss - found.taylor) / found.gap
    falls = all(np.diff(list(errors.values())) < 0)
    values = ", ".join(f"{100 * error:.1f} % at {temperature:g}" for temperature, error in errors.items())
    return Claim(
        "3.1, B.1",
        "Where the kernel varies little, InfoNCE is -HSIC(Z, Y) and half the variance of the kernel.",
        "shown" if falls and errors[5.0] < 0.05 else "not shown",
        f"error relative to what InfoNCE adds to -HSIC(Z, Y), of cosines over a temperature: {values}",
    )


def below_ssl_hsic() -> Claim:
    """Section 3.1."""
    found = _population()
    margin = np.sqrt(found.hsic_zz) - found.hsic_zz
    return Claim(
        "3.1",
        "The same bound is below the loss of SSL-HSIC, where HSIC(Z, Z) is at most 1.",
        "shown" if margin >= 0 else "contradicted",
        f"HSIC(Z, Z) {found.hsic_zz:.3g}, its root {np.sqrt(found.hsic_zz):.3g}",
    )


def mean_mmd() -> Claim:
    """Appendix B.2."""
    z, kernel = outputs()[:40], _kernel()
    flat = z.reshape(-1, z.shape[-1])
    found = analysis.info_nce(analysis.kernel_matrix(flat, kernel), np.repeat(np.arange(40), _VIEWS))
    distances = [analysis.mmd2(a, b, kernel, unbiased=False) for a in z for b in z]
    error = abs(0.5 * float(np.mean(distances)) - found.hsic_zy)
    return _identity(
        "B.2",
        "HSIC(Z, Y) is half the mean squared MMD between the views of two images.",
        error,
        found.hsic_zy,
    )


def clusters() -> Claim:
    """Equation 9."""
    z = outputs()
    z = np.concatenate([z, -z])  # unit norm, and centred
    images, count, size = len(z), _VIEWS, z.shape[-1]
    flat = z.reshape(-1, size)
    labels = analysis.label_matrix(np.repeat(np.arange(images), count))
    n = images * count
    trace = float(hsic.hsic(tf.constant(flat @ flat.T), tf.constant(labels), ddof=0)) * n**2
    squares = float(np.sum((z - z.mean(1, keepdims=True)) ** 2))
    error = abs(-trace / count - (squares - n)) / n
    return _identity(
        "3.2",
        "With a linear kernel and centred unit vectors, -HSIC(Z, Y) is the loss of k-means, the images the clusters.",
        error,
        trace / count / n,
    )


def uniform() -> Claim:
    """Section 3.1, of alignment and uniformity."""
    z, kernel = outputs(), _kernel()
    flat = z.reshape(-1, z.shape[-1])
    constant = float(uniform_mean(kernel, z.shape[-1], tf.float64))
    of_views = float(
        analysis.kernel_matrix(flat, kernel)[
            analysis.label_matrix(np.repeat(np.arange(_IMAGES), _VIEWS)) > 0
        ].mean()
    )
    found = _population().hsic_zy
    error = abs(-found - (-of_views + analysis.mmd_to_uniform(flat, kernel) + constant))
    return _identity(
        "3.1",
        "-HSIC(Z, Y) is alignment and uniformity: -E k(views of an image) + MMD^2(outputs, uniform) + constant.",
        error,
        found,
    )


def _identity(section: str, statement: str, error: float, value: float) -> Claim:
    verdict = "shown" if error < _ROUNDING else "contradicted"
    differ = f"differ by {error:.1g}" if verdict == "contradicted" else f"are equal to {_ROUNDING:.0e}"
    return Claim(section, statement, verdict, f"both sides {differ}; HSIC(Z, Y) is {value:.3g}")


def mutual_information() -> Claim:
    """Figure 3: two inputs, encoded as the even and the odd numbers up to 2M + 1."""
    information, dependence, losses = [], [], []
    for most in range(9):
        z = np.arange(2.0 * most + 2)
        parity = z % 2
        joint = np.stack([parity == 0, parity == 1]) / len(z)
        independent = joint.sum(1, keepdims=True) * joint.sum(0)
        inside = joint > 0
        information.append(float(np.sum(joint[inside] * np.log(joint[inside] / independent[inside]))))
        found = analysis.info_nce(analysis.kernel_matrix(z[:, None], "gaussian"), parity)
        dependence.append(found.hsic_zy)
        losses.append(found.loss)
    constant = max(information) - min(information) < 1e-12
    prefers = int(np.argmin(losses)) == 0 and int(np.argmax(dependence)) == 0
    return Claim(
        "2.1, figure 3",
        "Mutual information does not tell a useful encoding from a useless one; HSIC and InfoNCE do.",
        "shown" if constant and prefers else "contradicted",
        f"for M = 0 to 8 mutual information is {information[0]:.6f} to {information[-1]:.6f}; with a Gaussian kernel "
        f"HSIC(Z, Y) falls from {dependence[0]:.3f} to {dependence[-1]:.3f}, InfoNCE rises from {losses[0]:.3f} to "
        f"{losses[-1]:.3f}",
    )


ALL: tuple[Callable[[], Claim], ...] = (
    biased_zy,
    unbiased_zy,
    biased_zz,
    info_nce_bound,
    info_nce_taylor,
    below_ssl_hsic,
    mean_mmd,
    clusters,
    uniform,
    mutual_information,
)


def recorded(file: Path, run: bool = False) -> list[Claim]:
    """The claims, as they were found last; to `run`, as they are found now, and noted where that differs."""
    known = {}
    for record in trials.load(file):
        if "claim" in record:
            known[record["claim"]] = Claim(**record["found"])
    for claim in ALL if run else ():
        found = claim()
        if known.get(claim.__name__) != found:
            trials.add(file, {"claim": claim.__name__, "found": dataclasses.asdict(found)})
        known[claim.__name__] = found
    return list(known.values())


def lines(found: Iterable[Claim]) -> Iterator[str]:
    """A table of Markdown."""
    yield "| section | what the paper states | here | numbers |"
    yield "| --- | --- | --- | --- |"
    for one in found:
        yield f"| {one.section} | {one.statement} | **{one.verdict}** | {one.found} |"
