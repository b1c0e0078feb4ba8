"""What the configs of the repository say, against the paper."""

from pathlib import Path

import pytest

from keras_sslhsic import views
from keras_sslhsic.runs import config, evaluate
from keras_sslhsic.views import ViewPolicy

IMAGENET = Path(__file__).parents[1] / "configs" / "imagenet_r50_1x.py"


def test_the_default_run_is_measured_on_its_test_images():
    (group,) = evaluate.groups_of(config.load(IMAGENET.with_name("fashion_small.py")))
    assert (group.data, len(group.splits["train"][0]), len(group.splits["test"][0])) == (
        "bundled",
        10_000,
        2_000,
    )
    assert group.evals == {"knn": {"k": 20}, "linear": {"protocol": "linear_features"}}


def test_imagenet_is_measured_where_it_is_prepared(tmp_path):
    settings = config.load(IMAGENET, [f"data.data_dir={tmp_path}"])
    assert set(settings.evals) == {"knn", "linear"}
    # Whatever comes before the images is in order.
    with pytest.raises(ValueError, match=f"imagenet2012 .*{tmp_path}"):
        evaluate.groups_of(settings)


def test_imagenet_is_pretrained_as_in_the_paper_and_the_released_code():
    settings = config.load(IMAGENET)
    images = 1_281_167  # all training images
    assert settings.data.split == "train"
    assert settings.epochs * (images // settings.batch_size) == 312_000
    assert settings.epochs * images // settings.batch_size == 312_784
    assert images % settings.batch_size == 3_215
    assert all(number in IMAGENET.read_text() for number in ("312,000", "312,784", "3,215", "Cloud TPU v4"))
    # Crops of the views, from the original image.
    assert settings.data.host_crops is True and "image_size" not in settings.data
    assert ViewPolicy.from_dict(settings.views) == views.byol(224)
    assert (settings.optimizer.learning_rate, settings.optimizer.weight_decay) == (0.4, 1e-6)
    assert (settings.loss.kernel, settings.loss.gamma, settings.loss.num_features) == ("imq", 3.0, 512)
