"""Honest baselines: predictors that a method must beat to be worth anything.

Each is fitted on the rows of training users and tuned on validation users; a new user is folded in from the support
rows alone (`retrained_mf`, the reference, is refitted instead).

registry       all of them, in the order used in tables
rows           their inputs and outputs, and how their settings are chosen
means          means and biases
lenskit        LensKit's factorisation and item neighbours
cmfrec         a factorisation of ratings, profiles and contents together
factorisation  a factorisation that is refitted with the new users
features       what boosting and regression know about a row
boosting       LightGBM
logistic       logistic regression

Those that rank the whole catalogue are tuned by the lists that validation users get:

popularity     what is popular, among all users and by profile
item_item      sums over the user's history: a linear autoencoder
lenskit_ranking  LensKit's item neighbours, EASE, SLIM and implicit factorisation
"""

from paml.baselines.means import SHRINKAGES, BiasModel, tuned_bias
from paml.baselines.registry import BASELINE_REGISTRY, BASELINES, Baseline, baselines_for, find_baseline, rankers_for
from paml.baselines.rows import Fitted, Predictor, Ranker, SplitRows

__all__ = [
    "BASELINES",
    "BASELINE_REGISTRY",
    "SHRINKAGES",
    "Baseline",
    "BiasModel",
    "Fitted",
    "Predictor",
    "Ranker",
    "SplitRows",
    "baselines_for",
    "find_baseline",
    "rankers_for",
    "tuned_bias",
]
