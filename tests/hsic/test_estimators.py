import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_sslhsic.hsic import (
    features,
    hsic,
    hsic_zy,
    hsic_zy_features,
    hsic_zz,
    hsic_zz_features,
    kernels,
    ssl_hsic,
)

KERNELS = ["linear", "gaussian", "imq"]


def unit(*shape, seed=0):
    z = np.random.default_rng(seed).normal(size=shape)
    return z / np.linalg.norm(z, axis=-1, keepdims=True)


def matrix(z, kernel="imq"):
    z = tf.reshape(z, [-1, z.shape[-1]])
    return kernels.get(kernel).value(kernels.squared_distances(z, z)).numpy()


def naive_zy(z, kernel, dataset_size=None, unbiased=False, constant=True):
    """The paper's two formulas, term by term."""
    images, views, _ = z.shape
    k = matrix(z, kernel).reshape(images, views, images, views)
    same, everything = np.einsum("ipil->", k), k.sum()
    b, m, n = images, views, dataset_size
    if not unbiased:
        return same / (b * m * (m - 1)) - everything / (b * m) ** 2 - constant / (m - 1)
    first = m / (m - 1) + (n - 1) / (n * (b - 1)) - m / (n * (m - 1))
    second = b * (n - 1) / ((b - 1) * n)
    return first * same / (b * m**2) - second * everything / (b * m) ** 2 - constant * (n - 1) / (n * (m - 1))


def centring(n):
    return np.eye(n) - 1 / n


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("shape", [(5, 2, 3), (3, 4, 6), (1, 2, 4)])
def test_hsic_zy_is_the_formula(kernel, shape):
    z = unit(*shape)
    assert hsic_zy(z, kernel).numpy() == pytest.approx(naive_zy(z, kernel), abs=1e-12)
    assert hsic_zy(z, kernel, constant=False).numpy() == pytest.approx(
        naive_zy(z, kernel, constant=False), abs=1e-12
    )
    if shape[0] > 1:
        value = hsic_zy(z, kernel, unbiased=True, dataset_size=50)
        assert value.numpy() == pytest.approx(naive_zy(z, kernel, 50, unbiased=True), abs=1e-12)


@pytest.mark.parametrize("kernel", KERNELS)
def test_hsic_zz_is_the_formula(kernel):
    z = unit(5, 3, 4)
    k, h, n = matrix(z, kernel), centring(15), 15
    expected = np.trace(k @ h @ k @ h)
    assert hsic_zz(z, kernel).numpy() == pytest.approx(expected / (n - 1) ** 2)
    assert hsic_zz(z, kernel, ddof=0).numpy() == pytest.approx(expected / n**2)
    assert hsic_zz(z, kernel, unbiased=True).numpy() == pytest.approx(hsic(k, k, unbiased=True).numpy())


def test_generic_hsic_biased_and_unbiased():
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(7, 2)), rng.normal(size=(7, 3))
    k, other, h, n = matrix(x), matrix(y, "gaussian"), centring(7), 7
    assert hsic(k, other).numpy() == pytest.approx(np.trace(k @ h @ other @ h) / (n - 1) ** 2)
    assert hsic(k, other, ddof=0).numpy() == pytest.approx(np.trace(k @ h @ other @ h) / n**2)
    # The U-statistic, from its definition over all quadruples of different samples.
    total, count = 0.0, 0
    for i in range(n):
        for j in range(n):
            for q in range(n):
                for r in range(n):
                    if len({i, j, q, r}) == 4:
                        total += k[i, j] * (other[i, j] + other[q, r] - 2 * other[i, q])
                        count += 1
    assert hsic(k, other, unbiased=True).numpy() == pytest.approx(total / count)


@pytest.mark.parametrize("unbiased", [False, True])
@pytest.mark.parametrize("constant", [False, True])
def test_features_with_an_exact_feature_map_give_the_exact_estimators(unbiased, constant):
    z = unit(4, 3, 5)
    r = np.linalg.cholesky(matrix(z) + 1e-12 * np.eye(12)).reshape(4, 3, 12)
    options = {"unbiased": unbiased, "dataset_size": 20, "constant": constant}
    assert hsic_zy_features(r, **options).numpy() == pytest.approx(hsic_zy(z, **options).numpy(), abs=1e-9)
    assert hsic_zz_features(r, r).numpy() == pytest.approx(hsic_zz(z).numpy(), rel=1e-8)
    flat = r.reshape(12, 12)
    assert hsic_zz_features(flat, flat, ddof=0).numpy() == pytest.approx(hsic_zz(z, ddof=0).numpy(), rel=1e-8)


@pytest.mark.parametrize("unbiased", [False, True])
@pytest.mark.parametrize("constant", [False, True])
def test_labels_in_any_order_stand_for_views(unbiased, constant):
    z, order = unit(4, 3, 5), np.random.default_rng(2).permutation(12)
    labels = np.repeat([7, -1, 40, 3], 3)[order]
    options = {"unbiased": unbiased, "dataset_size": 20, "constant": constant}
    expected = hsic_zy(z, **options).numpy()
    assert hsic_zy(z.reshape(12, 5)[order], labels=labels, **options).numpy() == pytest.approx(expected)
    expected = hsic_zy_features(z, **options).numpy()
    assert hsic_zy_features(z.reshape(12, 5)[order], labels=labels, **options).numpy() == pytest.approx(
        expected
    )


@pytest.mark.parametrize("unbiased", [False, True])
def test_groups_of_different_sizes_count_equally(unbiased):
    labels, z = np.array([0, 1, 0, 2, 1, 0, 3]), unit(7, 5)
    k = matrix(z, "gaussian")
    members = [np.flatnonzero(labels == g) for g in range(4)]
    pairs = np.mean(
        [(k[np.ix_(g, g)].sum() - len(g)) / (len(g) * (len(g) - 1)) for g in members if len(g) > 1]
    )
    between = np.array([[k[np.ix_(g, h)].mean() for h in members] for g in members])
    expected = pairs - between.mean()
    if unbiased:
        expected = 0.9 * (pairs - between[~np.eye(4, dtype=bool)].mean())
    options = {"labels": labels, "unbiased": unbiased, "dataset_size": 10}
    assert hsic_zy(z, "gaussian", **options).numpy() == pytest.approx(expected)
    r = np.linalg.cholesky(k)
    assert hsic_zy_features(r, **options).numpy() == pytest.approx(expected)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("unbiased", [False, True])
@pytest.mark.parametrize("with_labels", [False, True])
def test_objective_and_its_gradient_against_finite_differences(kernel, unbiased, with_labels):
    # Wide angles between the images keep the unbiased hsic_zz positive.
    z = np.repeat(unit(4, 1, 3), 3, axis=1) + 0.1 * unit(4, 3, 3, seed=1)
    labels = None
    if with_labels:
        z, labels = z.reshape(12, 3), tf.constant([0, 0, 1, 1, 1, 1, 2, 2, 2, 3, 3, 4])

    @tf.function
    def value(z):
        return ssl_hsic(z, kernel, 2.0, labels=labels, unbiased=unbiased, dataset_size=9, block_rows=5)[0]

    check_gradient(value, z)


@pytest.mark.parametrize("unbiased", [False, True])
def test_gradient_of_feature_estimators_against_finite_differences(unbiased):
    r2 = tf.constant(np.random.default_rng(5).normal(size=(4, 3, 6)))
    labels = tf.constant([0, 0, 1, 1, 1, 1, 2, 2, 2, 3, 3, 4])

    @tf.function
    def value(r):
        flat = tf.reshape(r, [12, 5])
        return (
            hsic_zy_features(r, unbiased=unbiased)
            + 0.3 * hsic_zy_features(flat, labels=labels, unbiased=unbiased)
            + 0.1 * hsic_zz_features(r, r2)
        )

    check_gradient(value, np.random.default_rng(4).normal(size=(4, 3, 5)))


@pytest.mark.parametrize("unbiased", [False, True])
def test_gradient_of_generic_hsic_against_finite_differences(unbiased):
    other = tf.constant(matrix(unit(6, 4, seed=3)))

    @tf.function
    def value(k):
        return hsic(k, other, unbiased=unbiased)

    check_gradient(value, matrix(unit(6, 4)))


def check_gradient(function, x, h=1e-5):
    x = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        value = function(x)
    gradient = tape.gradient(value, x)
    rng = np.random.default_rng(0)
    for _ in range(3):
        direction = tf.constant(rng.normal(size=x.shape))
        numeric = (function(x + h * direction) - function(x - h * direction)) / (2 * h)
        assert tf.reduce_sum(gradient * direction).numpy() == pytest.approx(
            numeric.numpy(), rel=1e-5, abs=1e-8
        )


@pytest.fixture(scope="module")
def population():
    """Six images with three equally likely views each, and their HSIC for the inverse multiquadric kernel."""
    views = np.repeat(unit(6, 1, 4), 3, axis=1) + 0.8 * unit(6, 3, 4, seed=1)
    views /= np.linalg.norm(views, axis=-1, keepdims=True)
    k = matrix(views).reshape(6, 3, 6, 3).mean(axis=(1, 3))
    return views, np.trace(k) / 6 - k.mean()


def estimates(views, batches, images, replace, **options):
    rng = np.random.default_rng(images)
    chosen = np.stack([rng.choice(6, images, replace=replace) for _ in range(batches)])
    z = views[chosen[:, :, None], rng.integers(0, 3, size=(batches, images, 2))]
    # The features of an exact feature map make this fast; they agree with the kernel by the test above.
    k = matrix(views)
    r = np.linalg.cholesky(k + 1e-13 * np.eye(18)).reshape(6, 3, 18)
    r = r[
        chosen[:, :, None], np.argmax(np.all(z[:, :, :, None] == views[chosen][:, :, None], axis=-1), axis=-1)
    ]
    return tf.function(lambda r: tf.map_fn(lambda x: hsic_zy_features(x, **options), r))(
        tf.constant(r)
    ).numpy()


@pytest.mark.parametrize("images", [2, 4])
def test_unbiased_estimator_is_unbiased_without_replacement(population, images):
    views, expected = population
    values = estimates(views, 6000, images, replace=False, unbiased=True, dataset_size=6)
    assert abs(values.mean() - expected) < 3 * values.std() / np.sqrt(len(values))
    biased = estimates(views, 6000, images, replace=False)
    assert abs(biased.mean() - expected) > 6 * biased.std() / np.sqrt(len(biased))


def test_bias_of_the_biased_estimator_falls_with_the_batch(population):
    views, expected = population
    scaled, errors = [], []
    for images in (2, 4, 8):
        values = estimates(views, 6000, images, replace=True)
        scaled.append(images * (values.mean() - expected))
        errors.append(images * values.std() / np.sqrt(len(values)))
    assert scaled[0] < -6 * errors[0]
    for i in (1, 2):
        assert abs(scaled[i] - scaled[0]) < 3 * np.hypot(errors[i], errors[0])


@pytest.mark.parametrize("low_variance", [False, True])
def test_features_have_the_exact_estimators_as_expectation(low_variance):
    z, kernel = tf.constant(unit(6, 2, 5), tf.float32), kernels.InverseMultiquadric(0.8)

    @tf.function
    def both(seed):
        seeds = tf.unstack(tf.random.split(seed, 2, alg="philox"))
        r, r2 = [
            features.random_fourier_features(z, *features.draw(kernel, 5, 32, s, low_variance)) for s in seeds
        ]
        return tf.stack([hsic_zy_features(r), hsic_zz_features(r, r2)])

    values = np.stack([both(tf.constant([3, i])) for i in range(800)])
    expected = [hsic_zy(z, kernel).numpy(), hsic_zz(z, kernel).numpy()]
    assert np.all(np.abs(values.mean(axis=0) - expected) < 3 * values.std(axis=0) / np.sqrt(len(values)))


def test_error_of_the_features_falls_as_one_over_the_root_of_their_number():
    z, kernel = tf.constant(unit(6, 2, 5), tf.float32), kernels.InverseMultiquadric(0.8)
    exact = np.array([hsic_zy(z, kernel), hsic_zz(z, kernel)])

    @tf.function
    def both(seed, num_features):
        seeds = tf.unstack(tf.random.split(seed, 2, alg="philox"))
        r, r2 = [
            features.random_fourier_features(z, *features.draw(kernel, 5, num_features, s)) for s in seeds
        ]
        return tf.stack([hsic_zy_features(r), hsic_zz_features(r, r2)])

    few, many = [
        np.sqrt(np.mean([(both(tf.constant([6, i]), number) - exact) ** 2 for i in range(60)], axis=0))
        for number in (32, 2048)
    ]
    assert np.all(many < few / 4) and np.all(many > few / 16)


def test_half_the_mean_squared_mmd_between_images():
    z = unit(5, 3, 4)
    k = matrix(z).reshape(5, 3, 5, 3)
    within = [(k[i, :, i].sum() - 3) / 6 for i in range(5)]
    mmd = [within[i] + within[j] - 2 * k[i, :, j].mean() for i in range(5) for j in range(5) if i != j]
    assert hsic_zy(z, unbiased=True).numpy() == pytest.approx(0.5 * np.mean(mmd))


def test_clustering_form_of_the_linear_kernel():
    z = unit(4, 3, 5)
    z = np.concatenate([z, -z])  # centred, and still of unit norm
    spread = np.sum((z - z.mean(axis=1, keepdims=True)) ** 2) / (8 * (3 - 1))
    assert hsic_zy(z, "linear").numpy() == pytest.approx(1 - spread)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), scale=st.floats(0.2, 3.0), concentration=st.floats(0.0, 3.0))
def test_info_nce_bounds_an_hsic_objective(seed, scale, concentration):
    """-E k(z1, z2) + E log E exp k(z, z')  >=  -hsic_zy + gamma hsic_zz, with gamma from the range of k."""
    z = unit(5, 3, 4, seed=seed) + concentration * unit(5, 1, 4, seed=seed + 1)
    z /= np.linalg.norm(z, axis=-1, keepdims=True)
    kernel = kernels.InverseMultiquadric(scale)
    k = matrix(z, kernel)
    positive = np.einsum("ipil->", k.reshape(5, 3, 5, 3)) / 45
    info_nce = -positive + np.mean(np.log(np.mean(np.exp(k), axis=1)))
    width = k.max() - k.min()
    gamma = 4 * np.log1p((np.exp(-width) - 1 + width) / 4) / width**2
    assert 0 < gamma <= 0.5
    zz = hsic_zz(z, kernel, ddof=0).numpy()
    assert info_nce >= -(positive - k.mean()) + gamma * zz - 1e-12


@pytest.mark.parametrize("kernel", KERNELS)
def test_order_of_images_and_of_views_does_not_matter(kernel):
    z, rng = unit(5, 3, 4), np.random.default_rng(0)
    shuffled = np.stack([image[rng.permutation(3)] for image in z[rng.permutation(5)]])
    np.testing.assert_allclose(ssl_hsic(shuffled, kernel), ssl_hsic(z, kernel), rtol=1e-12)
    np.testing.assert_allclose(hsic_zy_features(shuffled), hsic_zy_features(z), rtol=1e-12)


def test_exact_goldens():
    rng = np.random.RandomState(0)

    def draw(*shape):
        z = rng.randn(*shape)
        return (z / np.linalg.norm(z, axis=-1, keepdims=True)).astype(np.float32).astype(np.float64)

    identical = np.repeat(draw(256, 1, 256), 4, axis=1)
    independent = np.moveaxis(draw(4, 256, 256), 0, 1)
    for z, zy, zz in ((identical, 0.75398, 8.38659e-4), (independent, 0.33289, 3.19013e-4)):
        # Half of the last digit that is given.
        assert hsic_zy(z, constant=False).numpy() == pytest.approx(zy, abs=5e-6)
        assert hsic_zz(z, ddof=0).numpy() == pytest.approx(zz, abs=5e-10)


def test_float32_keeps_its_digits_near_collapse():
    z = (np.repeat(unit(1, 1, 8), 12, axis=0) + 1e-2 * unit(12, 2, 8, seed=3)).astype(np.float32)
    _, zy, zz = ssl_hsic(z.astype(np.float64))
    _, single_zy, single_zz = ssl_hsic(z)
    # A squared distance is two sums of 8 squares and twice one of 8 products, all near 1: in any order off by 4 x 8
    # half spacings of 2^-23 at most. The kernel's slope halves that; its own roundings, of 1 + s and of the root, are
    # less than 4 spacings. zy is a difference of two means of such values, sqrt(zz) the norm of their centred matrix
    # over 23.
    value = (8 + 4) * 2**-23
    assert single_zy.numpy() == pytest.approx(zy.numpy(), abs=2 * value)
    assert np.sqrt(single_zz) == pytest.approx(np.sqrt(zz), abs=24 / 23 * value)
    # Without a shift sums near 24^2 = 576 are subtracted, where the spacing is 2^-14: 0 would be left, or this and more.
    assert 40 * zz < 2**-14 / 23**2


def test_scale_is_held_constant():
    scale = tf.Variable(0.7)
    with tf.GradientTape() as tape:
        value = hsic_zz(unit(4, 2, 3).astype(np.float32), kernels.InverseMultiquadric(scale))
    assert tape.gradient(value, scale) is None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: hsic_zy(unit(4, 1, 3)), "M = 1"),
        (lambda: hsic_zy(unit(4, 3)), r"\(4, 3\)"),
        (lambda: hsic_zy(unit(1, 3, 4), unbiased=True), "B = 2 images"),
        (lambda: hsic_zy(unit(4, 3), labels=np.zeros(5, int)), r"\(4, 3\) and \(5,\)"),
        (lambda: hsic_zy_features(unit(4, 1, 3)), "M = 1"),
        (lambda: hsic_zy_features(unit(4, 3), labels=np.zeros((4, 2), int)), r"\(4, 3\) and \(4, 2\)"),
        (lambda: hsic_zz(unit(1, 3)), "n = 2 samples"),
        (lambda: hsic_zz(unit(3, 3), unbiased=True), "n = 4 samples"),
        (lambda: hsic_zz_features(unit(4, 3), unit(5, 3)), r"\(4, 3\) and \(5, 3\)"),
        (lambda: hsic(np.eye(3), np.eye(4)), r"\(3, 3\) and \(4, 4\)"),
        (lambda: hsic(np.eye(3), np.eye(3), unbiased=True), "n = 4 samples"),
        (lambda: ssl_hsic(unit(4, 2, 3), gamma=-1.0), "gamma must be at least 0, found -1"),
        (lambda: ssl_hsic(np.ones([4, 2, 3], int)), "floating-point numbers, found int64"),
        (lambda: hsic_zy(np.ones([4, 2, 3], bool)), "floating-point numbers, found bool"),
        (lambda: hsic_zy(unit(4, 2, 3).astype(complex)), "floating-point numbers, found complex128"),
        (lambda: hsic_zy(unit(4, 2, 3)[:0]), r"found the shape \(0, 2, 3\)"),
        (lambda: hsic_zz(unit(4, 2, 3)[None]), r"2 or 3 dimensions, found the shape \(1, 4, 2, 3\)"),
        (lambda: hsic_zz(unit(4, 2, 3)[..., :0]), r"found the shape \(4, 2, 0\)"),
        (lambda: hsic_zz_features(unit(3), unit(3)), r"2 or 3 dimensions, found the shape \(3,\)"),
        (lambda: hsic_zy_features(unit(4, 2, 3)[:0]), r"found the shape \(0, 2, 3\)"),
        (lambda: hsic(np.eye(3), np.eye(3, dtype="float32")), "one dtype, found float64 and float32"),
        (lambda: hsic_zy(unit(4, 2, 3), block_rows=0), "block_rows must be None or at least 1, found 0"),
        (lambda: hsic(tf.eye(4), tf.eye(4), ddof=2), "ddof must be at most 1, found 2"),
        (lambda: hsic_zz(unit(4, 2, 3), ddof=-1), "ddof must be at least 0, found -1"),
        (
            lambda: hsic_zz_features(unit(4, 2, 3), unit(4, 2, 3), ddof=0.5),
            "ddof must be an integer, found 0.5",
        ),
        (lambda: ssl_hsic(unit(4, 2, 3), gamma=float("nan")), "gamma must be a finite number, found nan"),
        (
            lambda: hsic_zy(unit(4, 2, 3), unbiased=True, dataset_size=0),
            "dataset_size must be None or at least 2",
        ),
        (lambda: hsic_zy(unit(4, 2, 3), None), "Unknown kernel None: give one of"),
        (lambda: hsic_zy(unit(4, 2, 3), kernels.Gaussian), "Unknown kernel <class"),
        (lambda: kernels.Gaussian(None), "positive and finite, found None"),
        (lambda: kernels.Gaussian("1"), "positive and finite, found '1'"),
        (lambda: features.draw("imq", 0, 8, [1, 2]), "dim must be at least 1, found 0"),
        (
            lambda: features.random_fourier_features(np.ones([4, 3], int), np.ones([8, 3]), np.ones(8)),
            "z in floating point, found int64",
        ),
    ],
)
def test_errors_state_what_was_found(call, message):
    with pytest.raises(ValueError, match=message):
        call()
