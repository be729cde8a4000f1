"""User embeddings in the plane, and how well they tell minor from major users.

Legend: U users, H width of the user embedding, K principal components, F folds.
"""

from dataclasses import dataclass

import numpy as np
import polars as pl
from matplotlib.figure import Figure as Canvas

from paml.analysis.format import count, number
from paml.report.figures import style
from paml.report.figures.material import DrawnEntry, Material
from paml.report.figures.style import INK

MAX_USERS = 500
FOLDS = 5
_ABOVE, _BELOW = 0.24, 0.34  # inches around a panel, for its name and its numbers


@dataclass(frozen=True)
class Separation:
    """How well embeddings tell minor from major users, measured in their own space and not in the plane."""

    auc: float
    """Of a logistic regression on users that it was not fitted to, mean over folds; 0.5 by chance."""
    silhouette: float
    """From -1 to 1; 0 if both groups lie at the same places."""


def embeddings(material: Material) -> Canvas | None:
    """User embeddings in the plane (t-SNE), by group, and their separation."""
    placed = []
    for entry in _shown(material):
        vector_UH, minor_U = _vectors(material.frame("embeddings").filter(pl.col("method") == entry.name))
        if len(vector_UH) > 4 and np.ptp(vector_UH, axis=0).any():
            placed.append((entry, plane(vector_UH), minor_U, separation(vector_UH, minor_U)))
    if not placed:
        return None
    columns = min(3, len(placed))
    lines = -(-len(placed) // columns)
    size = (style.WIDTH - 0.1 * (columns - 1)) / columns if columns > 1 else 3.0
    step = size + _ABOVE + _BELOW
    figure = style.canvas(0.28 + lines * step)
    for k, (entry, point_U2, minor_U, found) in enumerate(placed):
        left, top = (k % columns) * (size + 0.1), 0.28 + _ABOVE + (k // columns) * step
        axes = style.panel(figure, left, top, size, size)
        axes.set_xticks([])
        axes.set_yticks([])
        for spine in axes.spines.values():
            spine.set(visible=True, alpha=0.25)
        reach = 1.06 * float(np.abs(point_U2).max())
        axes.set_xlim(-reach, reach)
        axes.set_ylim(-reach, reach)
        major = style.dots(axes, point_U2[~minor_U], INK, 2.2, 0.3)
        minor = style.dots(axes, point_U2[minor_U], entry.colour, 2.8, 0.9)
        style.mark(major, f"{entry.label}: {int((~minor_U).sum())} major users")
        style.mark(minor, f"{entry.label}: {int(minor_U.sum())} minor users")
        axes.annotate(entry.label, (0, 1), (1, 4), xycoords="axes fraction", textcoords="offset points")
        if found is not None:
            text = f"AUC {number(found.auc, 2)}, silhouette {number(found.silhouette, 2)}"
            axes.annotate(text, (0, 0), (1, -11), xycoords="axes fraction", textcoords="offset points", fontsize=8)
    style.group_key(figure)
    return figure


def embeddings_caption(material: Material) -> str:
    """What the numbers are, why they are high, and who is not shown."""
    rest = sum(entry.learned for entry in material.present("embeddings")) - len(_shown(material))
    hidden = f" {count(rest, 'variant')} {'is' if rest == 1 else 'are'} not shown." if rest else ""
    return (
        f"t-SNE of up to {MAX_USERS:,} test users, major users in grey, minor users in colour, as the paper's Fig. 11;"
        " the axes have no unit, and distances in the plane prove nothing. The numbers are measured in the embeddings'"
        f" own space: the AUC of a logistic regression that tells minor from major users ({FOLDS} folds, 0.5 by chance)"
        " and the silhouette (0: both groups lie at the same places). The AUC is partly a tautology: groups are"
        f" defined by the profile that is embedded.{hidden}"
    )


def _shown(material: Material) -> list[DrawnEntry]:
    """Methods; where only variants were compared, those."""
    present = material.present("embeddings")
    return [entry for entry in present if entry.kind == "method"] or present


def _vectors(users: pl.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Embeddings of the first seed, and which users are minor; only the first users where there are many."""
    users = users.sort("seed", "user").filter(pl.col("seed") == pl.col("seed").min()).head(MAX_USERS)
    return np.array(users["vector"].to_list(), dtype=np.float64), (users["group"] == "minor").to_numpy()


def separation(vector_UH: np.ndarray, minor_U: np.ndarray) -> Separation | None:
    """AUC and silhouette in the embeddings' own space; None with too few users of a group for the folds."""
    from sklearn.linear_model import LogisticRegression  # slow to import
    from sklearn.metrics import silhouette_score
    from sklearn.model_selection import StratifiedKFold, cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if min(int(minor_U.sum()), int((~minor_U).sum())) < 2 * FOLDS:
        return None
    classifier = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=1000))
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=0)
    auc_F = cross_val_score(classifier, vector_UH, minor_U, cv=folds, scoring="roc_auc")
    return Separation(float(auc_F.mean()), float(silhouette_score(vector_UH, minor_U)))


def plane(vector_UH: np.ndarray) -> np.ndarray:
    """Positions in the plane (t-SNE), centred."""
    from sklearn.manifold import TSNE  # slow to import

    start_U2 = _components(vector_UH)
    tsne = TSNE(perplexity=min(30.0, (len(vector_UH) - 1) / 3), init=start_U2, random_state=0, max_iter=500)
    point_U2 = tsne.fit_transform(vector_UH)
    centred_U2: np.ndarray = point_U2 - (point_U2.max(0) + point_U2.min(0)) / 2
    return centred_U2


def _components(vector_UH: np.ndarray) -> np.ndarray:
    """The first two principal components, scaled down, as t-SNE's start; the second is 0 if there is only one."""
    centred_UH = vector_UH - vector_UH.mean(0)
    left_UK, size_K, _ = np.linalg.svd(centred_UH, full_matrices=False)
    plane_U2 = np.zeros((len(vector_UH), 2))
    kept = min(2, len(size_K))
    plane_U2[:, :kept] = left_UK[:, :kept] * size_K[:kept]
    found: np.ndarray = plane_U2 / (plane_U2[:, 0].std() or 1.0) * 1e-4
    return found
