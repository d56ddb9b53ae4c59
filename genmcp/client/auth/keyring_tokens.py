"""`KeyringTokens`: tokens that only the keyring of the operating system can open."""

import secrets
from pathlib import Path
from types import ModuleType
from urllib.parse import quote

from genmcp.client.auth.files import FileTokens, user_folder
from genmcp.client.auth.sealing import DEFAULT_MAX_BYTES, RecordCodec
from genmcp.client.auth.tokens import DEFAULT_LOCK_TIMEOUT, TokensUnavailable
from genmcp.errors import ConfigurationError
from genmcp.extras import missing_extra

_USER = "token key"  # the name of the entry in the keyring, within its service


class KeyringTokens(FileTokens):
    """Tokens in sealed files, whose secret is in the keyring. Extra: `keyring`.

    The keyring has one short entry, which is made at the first login: some keyrings limit the size
    of an entry to 2560 bytes, ask the user once for each entry, and have no way to change one
    atomically. Without the entry the files are worthless, and the next login replaces them.

    Args:
        service: the name of the entry's service. Default `genmcp`.
        path: the folder of the sealed files, as for `FileTokens`. Default: `genmcp/keyring` in the
            user's data folder, and in it a folder for the service.
        lock_timeout: seconds to wait for a process that renews the same token. Default 60.
        max_bytes: the maximum size of a record, before it is sealed. Default 64 KiB.

    Raises:
        ConfigurationError: the extra is not installed.
    """

    def __init__(
        self,
        service: str = "genmcp",
        path: str | Path | None = None,
        *,
        lock_timeout: float = DEFAULT_LOCK_TIMEOUT,
        max_bytes: int = DEFAULT_MAX_BYTES,
    ) -> None:
        if not service:
            raise ConfigurationError("service: must not be empty")
        folder = user_folder("data") / "keyring" / quote(service, safe="") if path is None else path
        super().__init__(folder, lock_timeout=lock_timeout, max_bytes=max_bytes)
        self._service = service
        self._keyring = _import_keyring()
        self._sealed: RecordCodec | None = None

    def _codec_of_records(self) -> RecordCodec:
        """Return the codec with the secret of the keyring, which is read once. May block.

        The keyring may ask the user to unlock it, and therefore is not used before there is a
        record.
        """
        if self._sealed is None:
            # Locked: of several processes that log in for the first time, one makes the secret.
            with self._exclusive("secret"):
                self._sealed = RecordCodec(self._secret(), self._max_bytes, disposable=True)
        return self._sealed

    def _secret(self) -> str:
        keyring = self._keyring
        try:
            if found := keyring.get_password(self._service, _USER):
                return str(found)
            made = secrets.token_urlsafe(32)
            keyring.set_password(self._service, _USER, made)
            if keyring.get_password(self._service, _USER) == made:
                return made
        except keyring.errors.KeyringError as error:
            raise TokensUnavailable(
                f"the keyring cannot be used: {error or type(error).__name__}. Where there is no "
                f"keyring, use FileTokens(secret=...) instead"
            ) from error
        raise TokensUnavailable(
            f"the keyring ({type(keyring.get_keyring()).__module__}) does not keep entries: select "
            f"another one (`keyring --list-backends`), or use FileTokens(secret=...) instead"
        )


def _import_keyring() -> ModuleType:
    try:
        import keyring
        import keyring.errors
    except ImportError as error:
        raise missing_extra("KeyringTokens", "keyring", error) from error
    return keyring
