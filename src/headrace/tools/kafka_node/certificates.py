"""Certificates for one broker and its clients, made with ``openssl``: trusted ones, and those of a
foreign authority, which the broker must refuse."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from headrace.core.errors import Refused

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
_DAYS = ("-days", "3650")
_BROKER_NAMES = "subjectAltName=DNS:localhost,IP:127.0.0.1\n"
_OWN, _FOREIGN = "ca", "foreign-ca"


@dataclass(frozen=True)
class Certificates:
    """The paths of the certificates. Only their owner can read the files."""

    directory: Path

    @property
    def ca(self) -> Path:
        return self.directory / f"{_OWN}.crt"

    @property
    def broker(self) -> Path:
        """The key of the broker, then its certificate."""
        return self.directory / "broker.pem"

    @property
    def client(self) -> Path:
        return self.directory / "client.crt"

    @property
    def client_key(self) -> Path:
        return self.directory / "client.key"

    @property
    def foreign_ca(self) -> Path:
        return self.directory / f"{_FOREIGN}.crt"

    @property
    def foreign_client(self) -> Path:
        """A client certificate signed by the foreign authority."""
        return self.directory / "foreign-client.crt"

    @property
    def foreign_client_key(self) -> Path:
        return self.directory / "foreign-client.key"


def certificates_in(directory: Path) -> Certificates:
    """The certificates in that directory; they are made if it does not exist."""
    if not directory.exists():
        making = directory.with_name(f"{directory.name}.making")
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir(mode=0o700)
        _make(making)
        making.rename(directory)
    return Certificates(directory)


def _make(directory: Path) -> None:
    for authority in (_OWN, _FOREIGN):
        _openssl(
            directory, "req", "-x509", *_KEY, *_DAYS, "-subj", f"/CN=headrace test {authority}",
            "-keyout", f"{authority}.key", "-out", f"{authority}.crt",
        )  # fmt: skip
    _signed(directory, "broker", _OWN, _BROKER_NAMES)
    _signed(directory, "client", _OWN, "extendedKeyUsage=clientAuth\n")
    _signed(directory, "foreign-client", _FOREIGN, "extendedKeyUsage=clientAuth\n")
    both = (directory / "broker.key").read_bytes() + (directory / "broker.crt").read_bytes()
    broker = Certificates(directory).broker
    broker.touch(0o600)
    broker.write_bytes(both)


def _signed(directory: Path, name: str, authority: str, extensions: str) -> None:
    (directory / f"{name}.ext").write_text(extensions)
    _openssl(
        directory, "req", *_KEY, "-subj", f"/CN={name}", "-keyout", f"{name}.key",
        "-out", f"{name}.csr",
    )  # fmt: skip
    _openssl(
        directory, "x509", "-req", "-in", f"{name}.csr", *_DAYS, "-extfile", f"{name}.ext",
        "-CA", f"{authority}.crt", "-CAkey", f"{authority}.key", "-CAcreateserial",
        "-out", f"{name}.crt",
    )  # fmt: skip


def _openssl(directory: Path, *arguments: str) -> None:
    try:
        subprocess.run(
            ["openssl", *arguments],
            cwd=directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
            umask=0o077,
        )
    except FileNotFoundError:
        raise Refused("certificates are made with openssl, and it is not on the path") from None
    except subprocess.CalledProcessError as failed:
        raise Refused(f"openssl {arguments[0]} failed: {failed.stderr.strip()}") from None
