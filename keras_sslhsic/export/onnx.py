"""Encoders as ONNX files."""

import os

import keras
import tensorflow as tf

from keras_sslhsic import files, lock
from keras_sslhsic.encoders import encoder_of
from keras_sslhsic.export.served import check_answer, check_precision, folded, image_spec, serve


def export_onnx(
    model: keras.Model, path: str | os.PathLike, opset: int = 17, image_size: int | None = None
) -> None:
    """Exports an encoder as an ONNX file: ``image`` uint8 [B, H, W, C] -> ``features``.

    Args:
        model: what `encoders.encoder_of` takes.
        path: the file to write.
        opset: version of the ONNX operators.
        image_size: side of the central squares that it sees of images of any size; None: it sees all of them, as the model.

    Raises:
        ImportError: without tf2onnx and onnxruntime (``pip install keras_sslhsic[onnx]``).
        ValueError: if `model` does not read images, or those of another size alone, computes in half precision, or ONNX lacks
            one of its operations (antialiasing) or ONNX Runtime answers otherwise than the model.
    """
    try:
        import onnxruntime
        import tf2onnx
    except ImportError as error:
        raise ImportError(
            "Exporting to ONNX needs tf2onnx and onnxruntime: pip install 'keras_sslhsic[onnx]'."
        ) from error
    files.check_writable(path)
    encoder = encoder_of(model)
    encoder.spec.size_for(image_size)
    check_precision(encoder, "ONNX")
    served, given = (
        tf.function(serve(folded(encoder), encoder.spec, image_size)),
        [image_spec(encoder.spec, image_size)],
    )
    try:
        proto, _ = tf2onnx.convert.from_function(served, input_signature=given, opset=opset)
        content = proto.SerializeToString()
        # tf2onnx also writes operations that ONNX does not have, and only logs them.
        session = onnxruntime.InferenceSession(content)
    except Exception as error:  # both raise many types
        raise ValueError(f"ONNX cannot express this encoder: {error}") from error
    check_answer(encoder, image_size, lambda image: session.run(["features"], {"image": image})[0], "ONNX")
    with lock.held(path):
        files.write_bytes(path, content)
