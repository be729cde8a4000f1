"""The environment of this process, recorded beside a comparison's plan whenever cells are fitted."""

import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from paml.analysis.environment import Environment, read_environments, write_environments
from paml.baselines import BASELINE_REGISTRY
from paml.evaluation.metrics import METRIC_REGISTRY
from paml.methods.registry import METHOD_REGISTRY

PACKAGES = ("torch", "numpy", "scipy", "polars", "lenskit", "lightgbm", "scikit-learn")


def this_environment(threads: int | None = None) -> Environment:
    """Versions of Python and of what computes, the platform, and the number of threads (of each job, if given)."""
    versions = dict(_others())
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return Environment(
        python=platform.python_version(),
        platform=platform.platform(),
        threads=threads or torch.get_num_threads(),
        packages=versions,
    )


def _others() -> Iterator[tuple[str, str]]:
    """Packages of which something was used that is not paml's own."""
    for registry in (METHOD_REGISTRY, BASELINE_REGISTRY, METRIC_REGISTRY):
        for origin in registry.origins():
            if origin.version:
                yield origin.package, origin.version


def record_environment(folder: Path, threads: int | None = None) -> None:
    """Add this environment to a comparison's, unless it is there: a continued comparison may have several."""
    known, here = read_environments(folder), this_environment(threads)
    if here not in known:
        write_environments(folder, (*known, here))
