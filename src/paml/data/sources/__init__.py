"""Sources: where raw tables come from. The registry is this dict, and what others add; a new source is one more entry.

base          what a source is given and returns
synthetic     an embedded world of ratings, clicks or choices, generated from a seed
movielens     MovieLens, all releases
bookcrossing  Book-Crossing
taobao        Ali_Display_Ad_Click
schema_file   your own files with a schema file
events        events without ratings (views, plays, purchases) as choices
download      official archives, downloaded once, resumed and checked
"""

from paml.data.protocol import Protocol
from paml.data.sources import bookcrossing, movielens, schema_file as tables, synthetic, taobao
from paml.data.sources.base import LoadRequest, Paper, RawData, Source
from paml.registry import Registry, of_type

__all__ = ["SOURCES", "SOURCE_REGISTRY", "LoadRequest", "Paper", "RawData", "Source", "find_source"]

_FILES, _NOTHING = frozenset({"path"}), frozenset[str]()

SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        Source(
            "synthetic",
            "embedded world of ratings, clicks or choices, generated from a seed",
            synthetic.SyntheticSettings,
            synthetic.load,
            _NOTHING,
        ),
        Source(
            "ml-1m",
            "MovieLens-1M: ratings 1 to 5, profiles with gender, age, occupation, zip",
            movielens.ProfileSettings,
            movielens.load_1m,
            frozenset({"path", "extra"}),
            movielens.archive("ml-1m", 5_917_549, "c4d9eecfca2ab87c1945afe126590906"),
            Paper(
                users=4832,
                items=3883,
                major=0.65,
                common_shares={"gender": 0.717, "age": 0.724, "occupation": 0.640, "zip": 0.567},
            ),
        ),
        Source(
            "ml-100k",
            "MovieLens-100K: ratings 1 to 5, profiles",
            movielens.ProfileSettings,
            movielens.load_100k,
            _FILES,
            movielens.archive("ml-100k", 4_924_029, "0e33842e24a9c977be4e0107933c0723"),
        ),
        *(
            Source(
                name,
                f"MovieLens {name.removeprefix('ml-').upper()}: ratings 0.5 to 5, no profiles",
                movielens.ReleaseSettings,
                movielens.load_release,
                _FILES,
                movielens.archive(name, size, md5),
            )
            for name, size, md5 in (
                ("ml-20m", 198_702_078, "cd245b17a1ae2cc31bb14903e1204af3"),
                ("ml-25m", 261_978_986, "6b51fb2759a8657d3bfcbfc42b592ada"),
                ("ml-32m", 238_950_008, "d472be332d4daa821edc399621853b57"),
            )
        ),
        Source(
            "ml-latest",
            "any later MovieLens release (ratings.csv, movies.csv), including ml-latest-small",
            movielens.ReleaseSettings,
            movielens.load_release,
            _FILES,
        ),
        Source(
            "bookcrossing",
            "Book-Crossing: ratings 1 to 10, profiles with state, country, age",
            bookcrossing.BookCrossingSettings,
            bookcrossing.load,
            _FILES,
            bookcrossing.ARCHIVE,
            Paper(users=7827, items=185_973, major=0.72),
            bookcrossing.protocol,
        ),
        Source(
            "taobao",
            f"Ali_Display_Ad_Click: ad impressions and clicks; registration at {taobao.PAGE}",
            taobao.TaobaoSettings,
            taobao.load,
            _FILES,
            protocol=lambda _: {
                "min_counts": "clicks"
            },  # the paper's rule, for the counterpart of the paper's own clicks
        ),
        Source(
            "tables",
            "your own files (CSV, Parquet, RecBole) with a schema; `paml data inspect` writes one",
            tables.TablesSettings,
            tables.load,
            frozenset({"path", "schema"}),
            # the paper drops both; to learn from, more users are better, and new users leave fields blank, too
            protocol=lambda _: {"active_users": "train", "drop_invalid_profiles": False},
        ),
    )
}


def _problem(name: str, entry: object) -> str | None:
    """What is wrong with somebody's source, or None."""
    wrong = of_type(Source, name, entry, "load")
    if wrong is not None or not isinstance(entry, Source):
        return wrong
    unknown = sorted(entry.takes - {"path", "extra", "schema"})
    if unknown:
        return f"takes '{unknown[0]}'; known: path, extra, schema"
    both = sorted(set(entry.settings.model_fields) & set(Protocol.model_fields))
    if both:
        return f"has the setting '{both[0]}', which the protocol has, too"
    entry.protocol(entry.settings())  # every setting needs a default
    return None


SOURCE_REGISTRY: Registry[Source] = Registry("source", SOURCES, _problem)


def find_source(name: str) -> Source:
    """The source called `name`, or an error that lists the known ones."""
    return SOURCE_REGISTRY.find(name)
