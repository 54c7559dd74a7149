"""Finds the packages below the folders that pyproject.toml maps."""

import tomllib
from pathlib import Path

from setuptools import find_packages, setup

PROJECT = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))
FOLDERS = PROJECT["tool"]["setuptools"]["package-dir"]

setup(
    packages=[
        name
        for package, folder in FOLDERS.items()
        for name in (
            package,
            *(f"{package}.{below}" for below in find_packages(folder)),
        )
        # Engines run these files by their path: they are data.
        if not name.startswith("mmrepro.reproducers.")
    ]
)
