"""What several tests share."""

import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # as the program does
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("MPLBACKEND", "Agg")

import keras
import pytest
import tensorflow as tf

# Strategies over four replicas are tried out on logical devices, which must be made before anything runs.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 4
)


def pytest_report_header():
    import keras_sslhsic

    return f"keras_sslhsic: {os.path.dirname(keras_sslhsic.__file__)}"


@pytest.fixture(autouse=True)
def _same_random_numbers_and_precision():
    keras.utils.set_random_seed(0)
    keras.mixed_precision.set_dtype_policy("float32")
    yield
    keras.mixed_precision.set_dtype_policy("float32")
