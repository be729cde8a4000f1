"""Comparisons here write whole reports; the files of their figures are the matter of tests/report."""

import pytest


@pytest.fixture(autouse=True)
def quick_reports(without_pdf: None) -> None:
    """No report here needs its figures as PDF."""
