"""Configurations of older releases load, and mean what they meant."""

from shardwright.config.load import load_config, parse_config

from .states import CONFIG


def test_a_file_with_every_field_means_the_same(release, tmp_path):
    loaded = load_config(release / "rig.yaml").config
    short = parse_config(
        CONFIG.format(root="/data/shardwright").replace("./", "/run/shardwright/"), folder=tmp_path
    ).config
    assert loaded == short, (
        "a default has changed: rigs that rely on it would do something else after an upgrade"
    )
