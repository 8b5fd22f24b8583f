"""Configurations of older releases load, and mean what they meant."""

from shardwright.config.load import load_config, parse_config

from .states import CONFIG

# Changed on purpose, as CHANGELOG.md says: what the old default was, and what it is.
CHANGED_DEFAULTS = {("http", "allowed_origins"): (("*",), ())}


def test_a_file_with_every_field_means_the_same(release, tmp_path):
    loaded = load_config(release / "rig.yaml").config
    short = parse_config(
        CONFIG.format(root="/data/shardwright").replace("./", "/run/shardwright/"), folder=tmp_path
    ).config
    for (section, field), (old, new) in CHANGED_DEFAULTS.items():
        part = getattr(short, section)
        assert (getattr(getattr(loaded, section), field), getattr(part, field)) == (old, new)
        short = short.model_copy(update={section: part.model_copy(update={field: old})})
    assert loaded == short, (
        "a default has changed: rigs that rely on it would do something else after an upgrade"
    )
