"""Tokens in files: rights, secrets, damage, and errors that name the remedy."""

import itertools
import logging
import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from genmcp.client.auth.files import FileTokens, user_folder
from genmcp.client.auth.tokens import TokensUnavailable
from genmcp.core.auth.record import encode_record
from genmcp.errors import ConfigurationError
from tests.contracts.tokens import KEY, RECORD, renewed, save

SECRET = "a secret for the tests"
OTHER = "another secret for them"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "tokens"


def files(folder: Path, pattern: str = "*") -> list[Path]:
    return sorted(folder.glob(pattern))


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


async def stored(folder: Path, secret: str | None = None) -> Path:
    """Store a record, and return its file."""
    await save(FileTokens(folder, secret=secret), RECORD)
    return files(folder, "*.json")[0]


def test_default_folder_is_that_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """XDG: a relative path in the variable is ignored."""
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("HOME", "/home/mia")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    assert user_folder() == Path("/home/mia/.local/share/genmcp")
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    assert user_folder() == Path("/home/mia/.local/share/genmcp")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert user_folder() == Path("/data/genmcp")
    monkeypatch.setattr("sys.platform", "darwin")
    assert user_folder() == Path("/home/mia/Library/Application Support/genmcp")
    monkeypatch.setattr("sys.platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", "/local")
    assert user_folder() == Path("/local/genmcp")


def test_missing_home_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as in a container with a user that is in no table of users."""

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(ConfigurationError, match="give path="):
        FileTokens()


async def test_files_are_private(folder: Path) -> None:
    """With any umask, only this user can read the folder, the records and the locks."""
    before = os.umask(0)
    try:
        await stored(folder)
    finally:
        os.umask(before)

    assert mode_of(folder) == 0o700
    assert [mode_of(path) for path in files(folder)] == [0o600] * 2


async def test_reading_creates_nothing(folder: Path) -> None:
    """A program without a login leaves no trace."""
    assert await FileTokens(folder).load(KEY) is None
    assert files(folder.parent) == []


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
async def test_file_open_to_others_is_refused(folder: Path, mode: int) -> None:
    """Its tokens may have been read or replaced; the command that mends it is in the error."""
    path = await stored(folder)
    path.chmod(mode)
    tokens = FileTokens(folder)

    with pytest.raises(TokensUnavailable, match=f"chmod 600 '{path}'"):
        await tokens.load(KEY)


async def test_folder_open_to_others_is_refused(folder: Path) -> None:
    """Another user could replace files in it."""
    (await stored(folder)).parent.chmod(0o770)
    tokens = FileTokens(folder)

    with pytest.raises(TokensUnavailable, match=f"chmod 700 '{folder}'"):
        await tokens.load(KEY)
    with pytest.raises(TokensUnavailable, match="chmod 700"):
        async with tokens.lock(KEY):
            pass


async def test_symbolic_links_are_refused(folder: Path, tmp_path: Path) -> None:
    """A link could direct tokens into a file that another user reads, or back."""
    path = await stored(folder)
    elsewhere = tmp_path / "elsewhere.json"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    with pytest.raises(TokensUnavailable, match="symbolic link"):
        await FileTokens(folder).load(KEY)

    link = tmp_path / "link"
    link.symlink_to(folder)
    with pytest.raises(TokensUnavailable, match="give its target as path="):
        await FileTokens(link).load(KEY)
    with pytest.raises(TokensUnavailable, match="symbolic link"):
        await save(FileTokens(link), RECORD)


async def test_planted_temporary_file_is_replaced(folder: Path, tmp_path: Path) -> None:
    """The file of a killed process, or a link in its place, does not receive the new tokens."""
    path = await stored(folder)
    target = tmp_path / "target"
    target.touch()
    path.with_suffix(".new").symlink_to(target)

    await save(FileTokens(folder), renewed(RECORD))
    assert target.read_text() == ""
    assert await FileTokens(folder).load(KEY) == renewed(RECORD)


async def test_files_of_other_users_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as after `sudo`: root would otherwise leave files that the user cannot read."""
    await stored(folder)
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)

    with pytest.raises(TokensUnavailable, match=f"belongs to another user .uid {user},"):
        await FileTokens(folder).load(KEY)


@pytest.mark.parametrize("kind", ["folder", "fifo", "parent"])
async def test_other_kinds_of_files_are_refused(folder: Path, kind: str) -> None:
    """A FIFO does not block the client, and an error of the file system is named."""
    path = await stored(folder)
    path.unlink()
    tokens = FileTokens(folder)
    match kind:
        case "folder":
            path.mkdir(mode=0o700)
        case "fifo":
            os.mkfifo(path, 0o600)
        case "parent":
            file = folder / "file"
            file.touch(0o600)
            tokens = FileTokens(file / "tokens")

    with pytest.raises(TokensUnavailable, match=r"remove it|cannot be stored in"):
        await tokens.load(KEY)


async def test_sealed_files_show_nothing(folder: Path) -> None:
    """Neither tokens nor the server are in the file."""
    text = (await stored(folder, SECRET)).read_text()

    assert text.startswith("g1")
    assert "example" not in text
    assert "token" not in text


async def test_wrong_secret_is_an_error(folder: Path) -> None:
    """A new login would replace the record that programs with the right secret use."""
    path = await stored(folder, SECRET)
    for tokens in (FileTokens(folder, secret=OTHER), FileTokens(folder)):
        with pytest.raises(TokensUnavailable, match=r"sealed.*or remove it") as caught:
            await tokens.load(KEY)
        assert SECRET not in str(caught.value)
    assert path.exists()


async def test_secret_can_be_rotated(folder: Path) -> None:
    """All secrets open, and the first one seals at the next change."""
    await stored(folder, SECRET)
    both = FileTokens(folder, secret=[OTHER, SECRET])
    assert await both.load(KEY) == RECORD
    await save(both, renewed(RECORD))

    assert await FileTokens(folder, secret=OTHER).load(KEY) == renewed(RECORD)


def test_weak_secret_is_refused(folder: Path) -> None:
    """It is a key and not a password."""
    with pytest.raises(ConfigurationError, match="secret: 5 bytes are too few"):
        FileTokens(folder, secret="short")


@pytest.mark.parametrize(
    ("damage", "secret"),
    [
        *itertools.product(["cut", "changed", "plain", "empty"], [None, SECRET]),
        ("of another key", SECRET),  # only a sealed record is bound to its key
    ],
)
async def test_damaged_file_leads_to_a_new_login(
    folder: Path, damage: str, secret: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """It counts as absent, so that no client fails at each start; the log names the file."""
    path = await stored(folder, secret)
    data = path.read_bytes()
    match damage:
        case "cut":
            path.write_bytes(data[: len(data) // 2])
        case "changed":
            changed = b"y" if data[60:61] == b"x" else b"x"
            path.write_bytes(changed.join([data[:60], data[61:]]) if secret else b"[" + data)
        case "of another key":
            await save(FileTokens(folder, secret=secret), RECORD, "other")
            (other,) = {*files(folder, "*.json")} - {path}
            path.write_bytes(other.read_bytes())
        case "plain":
            path.write_bytes(encode_record(RECORD) if secret else b"\xff\x00")
        case "empty":
            path.write_bytes(b"")
    tokens = FileTokens(folder, secret=secret)

    with caplog.at_level(logging.WARNING):
        assert await tokens.load(KEY) is None
    assert str(path) in caplog.text
    assert "access-token" not in caplog.text
    await save(tokens, renewed(RECORD))
    assert await tokens.load(KEY) == renewed(RECORD)


async def test_size_of_a_record_is_bounded(folder: Path) -> None:
    """In both directions, so that no client reads a file of any size."""
    path = await stored(folder)
    with pytest.raises(TokensUnavailable, match="more than can be stored"):
        await save(FileTokens(folder), replace(RECORD, access_token="a" * 200_000))
    path.write_bytes(b"{" * 200_000)
    with pytest.raises(TokensUnavailable, match=f"{path}.*remove it"):
        await FileTokens(folder).load(KEY)


async def test_link_in_place_of_a_lock_is_refused(folder: Path, tmp_path: Path) -> None:
    """A file elsewhere is not created, and not locked."""
    path = await stored(folder)
    lock = path.with_suffix(".lock")
    lock.unlink(missing_ok=True)
    lock.symlink_to(tmp_path / "elsewhere")

    with pytest.raises(TokensUnavailable, match="cannot be stored in"):
        await save(FileTokens(folder), RECORD)
    assert not (tmp_path / "elsewhere").exists()
