"""What a package adds to paml: a method with a rate function of its own, a baseline, a source and a metric.

Each is in a module of its own, so that `paml data prepare` does not wait for PyTorch. `pyproject.toml` names them.
"""
