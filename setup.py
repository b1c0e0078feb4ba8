"""Packaging of keras_sslhsic: metadata, version ranges, extras and the command line."""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
VERSION = (HERE / "keras_sslhsic" / "version.py").read_text().split('"')[1]
ADDRESS = re.findall("^repository-code: (.+)$", (HERE / "CITATION.cff").read_text(), re.MULTILINE)[0]
TFDS = [
    "tensorflow-datasets>=4.9.10",
    "importlib-resources>=5.0",  # TensorFlow Datasets 4.9.10 imports it without declaring it
]


def readme() -> str:
    """README.md as it can be read anywhere: what it links to by a path is at the project's address."""
    text = (HERE / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"(!\[[^]]*\]\()(?!https?:|#)", rf"\1{ADDRESS}/raw/main/", text)
    return re.sub(r"(?<!!)(\[[^]]*\]\()(?!https?:|#)", rf"\1{ADDRESS}/blob/main/", text)


setup(
    name="keras_sslhsic",
    version=VERSION,
    description="SSL-HSIC (self-supervised learning with kernel dependence maximisation) for Keras and TensorFlow",
    long_description=readme(),
    long_description_content_type="text/markdown",
    url=ADDRESS,
    project_urls={
        "Documentation": f"{ADDRESS}/tree/main/docs",
        "Changelog": f"{ADDRESS}/blob/main/CHANGELOG.md",
        "Issues": f"{ADDRESS}/issues",
    },
    license="Apache-2.0",
    license_files=["LICENSE"],
    packages=find_packages(include=["keras_sslhsic", "keras_sslhsic.*"]),
    py_modules=["keras_sslhsic_command"],
    package_data={"keras_sslhsic": ["py.typed", "data/files/*", "zoo/files/*"]},
    python_requires=">=3.10,<3.14",
    install_requires=[
        # 2.21 computes wrong values under XLA on CPU for the fused augmentation.
        "tensorflow>=2.20,<2.21",
        "keras>=3.10",
        "tensorflow-probability>=0.25,<0.26",
        "tf-keras>=2.20,<2.21",  # TensorFlow Probability imports it without declaring it
        "h5py>=3.11",
        "numpy>=2.0,<2.5",
        "scipy>=1.13",
        "scikit-learn>=1.5",
        "ml-collections>=1.0",
        "matplotlib>=3.10",
        "opencv-python-headless>=4.10",
        "pillow>=10.3",
        "threadpoolctl>=3.5",
        "tabulate>=0.9",
        "tqdm>=4.66",
    ],
    extras_require={
        "tfds": TFDS,
        "hub": ["huggingface_hub>=0.34"],
        "parquet": ["pyarrow>=17"],
        "search": ["faiss-cpu>=1.9"],
        "onnx": ["tf2onnx>=1.17", "onnxruntime>=1.20"],
        "beam": [*TFDS, "apache-beam>=2.77"],
        "tpu": ["tensorflow-tpu==2.20.0", "libtpu==0.0.30"],
        "dev": [
            *TFDS,
            "faiss-cpu>=1.9",
            "pytest>=8",
            "pytest-xdist>=3.6",
            "hypothesis>=6.100",
            "ruff>=0.9",
            "mypy>=1.13",
            "build>=1.2",
            "setuptools>=77",
            "wheel>=0.45",
            "nbclient>=0.10",
            "nbformat>=5.10",
            "ipykernel>=6.29",
        ],
    },
    entry_points={"console_scripts": ["keras-sslhsic = keras_sslhsic_command:main"]},
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Science/Research",
        "Programming Language :: Python :: 3",
        "Typing :: Typed",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
    keywords="self-supervised learning HSIC kernel keras tensorflow",
)
