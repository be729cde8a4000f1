from pathlib import Path

import numpy as np
import polars as pl
import pytest

import paml
from paml.data.resplit import resplit
from paml.data.sources.taobao import PROFILE
from paml.errors import PamlError


def write_taobao(folder: Path, users: int = 60, ads: int = 15, seed: int = 0) -> Path:
    """Files in exactly the format of Ali_Display_Ad_Click, including the space at the end of a header."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    log = [
        f"{u},{1494032110 + k},{100 + rng.integers(ads)},430548_100{k % 2},{1 - (click := rng.integers(2))},{click}"
        for u in range(1, users + 1)
        for k in range(12)
    ]
    (folder / "raw_sample.csv").write_text("\n".join(["user,time_stamp,adgroup_id,pid,nonclk,clk", *log]) + "\n")
    people = [f"{u},{u % 5},{u % 7},{1 + u % 2},{1 + u % 6},{1 + u % 3},3,0,{1 + u % 4}" for u in range(1, users)]
    (folder / "user_profile.csv").write_text("\n".join([",".join(("userid", *PROFILE)) + " ", *people]) + "\n")
    ads_lines = [f"{100 + a},{a % 3},{a % 4},{a},{'NULL' if a % 2 else 900 + a},{10.5 * a}" for a in range(ads)]
    header = "adgroup_id,cate_id,campaign_id,customer,brand,price"
    (folder / "ad_feature.csv").write_text("\n".join([header, *ads_lines]) + "\n")
    return folder


@pytest.fixture
def taobao(tmp_path: Path) -> Path:
    return write_taobao(tmp_path / "taobao")


def test_impressions_become_a_click_data_set(taobao: Path, tmp_path: Path) -> None:
    data = paml.prepare("taobao", taobao, tmp_path / "out", cold_share=1, rare_values=1)
    assert data.schema.target.kind == "click"
    assert data.manifest.source.users_without_profile == 1  # the last user has impressions and no profile
    items = data.items().collect()
    assert items["brand"].to_list()[:3] == ["900", None, "902"]
    assert items["log_price"].to_list() == pytest.approx(np.log1p(items["price"].to_numpy()).tolist())
    assert set(data.interactions().collect()["position"]) == {"430548_1000", "430548_1001"}
    assert data.manifest.interactions == 12 * data.manifest.users


def test_negative_prices_are_unknown(taobao: Path, tmp_path: Path) -> None:
    path = taobao / "ad_feature.csv"
    path.write_text(path.read_text().replace(",10.5\n", ",-1\n").replace(",21.0\n", ",-3\n"))
    data = paml.prepare("taobao", taobao, tmp_path / "out", cold_share=1)
    assert data.items().select("price", "log_price").collect()[1:3].rows() == [(None, None)] * 2
    assert data.array("item.log_price")[1:3].tolist() == [0, 0]
    assert np.abs(data.array("item.log_price")).max() < 10


def test_click_rates_are_smoothed_over_training_users(taobao: Path, tmp_path: Path) -> None:
    data = paml.prepare("taobao", taobao, tmp_path / "out", cold_share=1, rate_strength=7)
    end = data.manifest.splits["train"][1]
    rows = data.interactions().filter(pl.col("user") < end).collect()
    mean = rows["target"].mean()
    for item, (rate, log_rate) in enumerate(data.items().select("ctr", "log_ctr").collect().iter_rows()):
        clicks = rows.filter(pl.col("item") == item)["target"]
        assert rate == pytest.approx((clicks.sum() + 7 * mean) / (len(clicks) + 7))
        assert log_rate == pytest.approx(np.log(rate))


def test_clicks_of_held_out_users_change_no_feature(taobao: Path, tmp_path: Path) -> None:
    before = paml.prepare("taobao", taobao, tmp_path / "a", cold_share=1)
    for split in ("validation", "test"):
        first, end = before.manifest.splits[split]
        held_out = set(before.users().collect()["user"][first:end])
        path = taobao / "raw_sample.csv"
        head, *lines = path.read_text().splitlines()
        swapped = [
            line.rsplit(",", 2)[0] + f",{line.split(',')[-1]},{line.split(',')[-2]}"
            if line.split(",")[0] in held_out
            else line
            for line in lines
        ]
        assert swapped != lines
        path.write_text("\n".join([head, *swapped]) + "\n")
        after = paml.prepare("taobao", taobao, tmp_path / split, cold_share=1, min_interactions=2)
        assert after.users().collect()["user"].to_list() == before.users().collect()["user"].to_list()
        for file in sorted((before.path / "arrays").glob("*.npy")):
            name = file.name.removesuffix(".npy")
            if name != "target":
                assert np.array_equal(before.array(name), after.array(name)), name
        assert not np.array_equal(before.array("target"), after.array("target"))
        path.write_text("\n".join([head, *lines]) + "\n")


def test_bad_input(taobao: Path, tmp_path: Path) -> None:
    with pytest.raises(PamlError, match=r"'taobao' needs a folder or archive; give the path of one"):
        paml.prepare("taobao", out=tmp_path / "out")
    path = taobao / "raw_sample.csv"
    text = path.read_text()
    path.write_text(text.replace(",0,1\n", ",0,2\n", 1))
    with pytest.raises(PamlError, match=r"raw_sample.csv line \d+: clk '2' is not a number from 0 to 1"):
        paml.prepare("taobao", taobao, tmp_path / "out")
    path.write_text(text.replace("nonclk,clk", "nonclk,click"))
    with pytest.raises(PamlError, match=r"raw_sample.csv: has no column 'clk'; did you mean 'click'"):
        paml.prepare("taobao", taobao, tmp_path / "out")


def test_a_new_split_has_the_rates_of_its_own_training_users(taobao: Path, tmp_path: Path) -> None:
    data = paml.prepare("taobao", taobao, tmp_path / "a", cold_share=1)
    other = resplit(data, 3, tmp_path / "b")
    rows = other.interactions().filter(pl.col("user") < other.manifest.splits["train"][1]).collect()
    item, target = rows["item"].to_numpy(), rows["target"].to_numpy()
    count = np.bincount(item, minlength=other.manifest.items)
    clicks = np.bincount(item, weights=target, minlength=other.manifest.items)
    assert np.allclose(other.items().collect()["ctr"].to_numpy(), (clicks + 20 * target.mean()) / (count + 20))
    assert other.manifest.source.users_without_profile == data.manifest.source.users_without_profile == 1
