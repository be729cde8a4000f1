"""paml: knows what a new user likes after a handful of ratings, because every user gets an own learning rate.

>>> import paml
>>> data = paml.prepare("synthetic", out="world", users=500)
>>> paml.describe(data)["users"]
"""

from importlib.metadata import version

from paml.data.describe import describe
from paml.data.prepare import prepare
from paml.data.prepared import PreparedData
from paml.errors import DataError, FormatError, PamlError, SettingsError

__all__ = [
    "DataError",
    "FormatError",
    "PamlError",
    "PreparedData",
    "SettingsError",
    "describe",
    "open_data",
    "prepare",
]
__version__ = version("paml")

open_data = PreparedData.open
