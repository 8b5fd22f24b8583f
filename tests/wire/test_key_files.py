"""Key files: ours and those of zmq.auth are the same, and every file that cannot be trusted is one clear
refusal."""

from __future__ import annotations

import errno
import os
import resource
import stat
from pathlib import Path

import pytest
import zmq
import zmq.auth
from hypothesis import given
from hypothesis import strategies as st

from shardwright.model.errors import ConfigError, InvalidNameError, OutputExistsError
from shardwright.wire.key_files import read_public_key, read_secret_key, write_key_pair


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    return write_key_pair(tmp_path, "rig", *zmq.curve_keypair())


def test_what_is_written_is_read_by_us_and_by_zmq_auth(tmp_path: Path) -> None:
    public, secret = zmq.curve_keypair()
    public_path, secret_path = write_key_pair(tmp_path, "rig", public, secret)
    assert (public_path.name, secret_path.name) == ("rig.key", "rig.key_secret")
    assert (read_public_key(public_path), read_secret_key(secret_path)) == (public, secret)
    assert zmq.auth.load_certificate(secret_path) == (public, secret)
    assert zmq.auth.load_certificates(tmp_path) == {public: True}
    assert stat.S_IMODE(secret_path.stat().st_mode) == 0o600


def test_a_key_that_does_not_fit_on_the_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for most_bytes in (10, 210):  # the secret file's end, and the public one's
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, limits[1]))
        try:
            with pytest.raises(ConfigError, match="cannot write the key file"):
                write_key_pair(tmp_path, "x" * 100, *zmq.curve_keypair())
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert not list(tmp_path.iterdir())


def test_what_zmq_auth_writes_is_read(tmp_path: Path) -> None:
    public_path, secret_path = map(
        Path, zmq.auth.create_certificates(tmp_path, "rig", metadata={"place": "lab 3"})
    )
    secret_path.chmod(0o600)
    assert read_public_key(public_path) == read_public_key(secret_path)
    assert zmq.curve_public(read_secret_key(secret_path)) == read_public_key(public_path)


def test_no_key_is_ever_replaced_and_no_name_leaves_the_folder(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    before = [path.read_bytes() for path in pair]
    with pytest.raises(OutputExistsError):
        write_key_pair(tmp_path, "rig", *zmq.curve_keypair())
    pair[1].unlink()
    with pytest.raises(OutputExistsError):
        write_key_pair(tmp_path, "rig", *zmq.curve_keypair())
    assert pair[0].read_bytes() == before[0]
    assert not pair[1].exists(), "no half pair"
    for name in ("../rig", "/rig", "a/b", "", ".rig", "a..b"):
        with pytest.raises(InvalidNameError):
            write_key_pair(tmp_path, name, *zmq.curve_keypair())
    assert [path.name for path in tmp_path.iterdir()] == ["rig.key"]


@pytest.mark.parametrize("mode", [0o644, 0o600])
def test_a_public_key_in_place_of_the_secret_one_is_told(pair: tuple[Path, Path], mode: int) -> None:
    pair[0].chmod(mode)
    with pytest.raises(
        ConfigError,
        match=r"rig\.key is a public key; expected the secret one, rig\.key_secret, that `shardwright keygen`",  # noqa: E501
    ) as caught:
        read_secret_key(pair[0])
    assert "chmod" not in str(caught.value)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o610])
def test_a_secret_that_others_may_read_is_refused(pair: tuple[Path, Path], mode: int) -> None:
    pair[1].chmod(mode)
    with pytest.raises(
        ConfigError, match=rf"is open to others; expected mode 0600; got mode {mode:04o}. `chmod go-rwx"
    ):
        read_secret_key(pair[1])


def test_a_public_key_that_anybody_may_exchange_is_refused(pair: tuple[Path, Path]) -> None:
    pair[0].chmod(0o646)
    with pytest.raises(ConfigError, match="one that others cannot write to"):
        read_public_key(pair[0])


def test_other_files_are_no_keys(pair: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "no.key_secret").write_text("curve\n")
    with pytest.raises(ConfigError, match=r"is open to others"):
        read_secret_key(tmp_path / "no.key_secret")
    (tmp_path / "no.key_secret").chmod(0o600)
    with pytest.raises(ConfigError, match=r"holds no secret-key; expected a file NAME\.key_secret"):
        read_secret_key(tmp_path / "no.key_secret")
    with pytest.raises(ConfigError, match="no such file"):
        read_public_key(tmp_path / "absent.key")
    os.mkfifo(tmp_path / "pipe.key")  # nobody will ever write into it
    for path in (tmp_path, tmp_path / "pipe.key"):
        with pytest.raises(ConfigError, match="another kind of file"):
            read_public_key(path)
    (tmp_path / "long.key").write_bytes(b"#" * 100_000)
    with pytest.raises(ConfigError, match="too long for a key file"):
        read_public_key(tmp_path / "long.key")


def test_a_key_of_somebody_else_is_refused(pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:  # tests may run as root, who may read every file
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ConfigError, match="Permission denied"):
        read_secret_key(pair[1])


@given(
    content=st.binary(max_size=200)
    | st.text("0123456789abcXYZ.#%", max_size=45).map(lambda key: f'public-key = "{key}"'.encode())
)
def test_whatever_is_in_a_file_is_a_key_that_zeromq_takes_or_a_refusal(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.key"
    path.write_bytes(content)
    path.chmod(0o600)
    try:
        key = read_public_key(path)
    except ConfigError as error:
        assert str(path) in str(error)  # noqa: PT017 - a key is as good
    else:
        with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
            socket.curve_serverkey = key


@pytest.mark.parametrize(
    ("key", "usable"),
    [("0" * 40, True), ("#" * 40, False), ("%nSc0" * 8, True), ("%nSc1" * 8, False), ("0" * 39, False)],
)
def test_forty_characters_may_still_be_no_key(tmp_path: Path, key: str, usable: bool) -> None:
    path = tmp_path / "a.key"
    path.write_text(f"public-key = {key}\n")
    if usable:
        assert read_public_key(path) == key.encode()
    else:
        with pytest.raises(ConfigError, match="holds no usable public-key; expected 40 characters of Z85"):
            read_public_key(path)
