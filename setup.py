"""What ``pyproject.toml`` cannot say: the folder ``patches`` is installed inside the package."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["dort_rewriter*"]), "dort_rewriter.patches"],
    package_dir={"dort_rewriter.patches": "patches"},
    package_data={
        "dort_rewriter": ["py.typed", "runtime/kernels_cpp/*"],
        "dort_rewriter.patches": ["*/*.diff"],
    },
)
