import numpy as np

from keras_sslhsic.encoders import Head, build_head


def test_projector_is_linear_bn_relu_linear():
    head = build_head(6, Head(5, 3), "head")
    rng = np.random.default_rng(0)
    head.set_weights([rng.uniform(0.5, 1.5, weight.shape) for weight in head.get_weights()])
    weights = {weight.path: np.asarray(weight, np.float64) for weight in head.weights}
    x = rng.normal(size=(4, 6))
    hidden = x @ weights["hidden/kernel"] + weights["hidden/bias"]
    scale = weights["hidden_bn/gamma"] / np.sqrt(weights["hidden_bn/moving_variance"] + 1e-5)
    hidden = (hidden - weights["hidden_bn/moving_mean"]) * scale + weights["hidden_bn/beta"]
    expected = np.maximum(hidden, 0) @ weights["output/kernel"]
    np.testing.assert_allclose(head(x.astype(np.float32)), expected, rtol=1e-5, atol=1e-5)
    assert not any("output/bias" in path for path in weights)


def test_output_batch_norm_is_an_option():
    outputs = build_head(6, Head(5, 3, batch_norm_output=True), "head")(
        np.random.default_rng(0).normal(size=(64, 6)).astype(np.float32), training=True
    )
    np.testing.assert_allclose(np.mean(outputs, 0), 0, atol=1e-5)
    np.testing.assert_allclose(np.std(outputs, 0), 1, atol=1e-3)


def test_training_output_is_that_of_the_released_code(data):
    golden = data("train_tiny.npz")
    head = build_head(8, Head(32, 16), "head")
    params = {
        k.removeprefix("online_final/params/projector/"): v
        for k, v in golden.items()
        if "final/params/projector" in k
    }
    params = {k: v for k, v in params.items() if not k.startswith("target")}
    head.get_layer("hidden").set_weights([params["linear/w"], params["linear/b"]])
    head.get_layer("output").set_weights([params["linear_1/w"]])
    bn = head.get_layer("hidden_bn")
    bn.set_weights([params["batch_norm/scale"][0], params["batch_norm/offset"][0], *bn.get_weights()[2:]])
    projection = head(golden["train/embedding_view1"], training=True)
    np.testing.assert_allclose(projection, golden["train/projection_view1"], atol=1e-4)


def test_sizes_of_the_paper_are_the_defaults():
    head = build_head(256, Head(), "projector")
    assert head.name == "projector"
    assert [tuple(w.shape) for w in head.trainable_variables] == [
        (256, 4096),
        (4096,),
        (4096,),
        (4096,),
        (4096, 256),
    ]
