"""Requests to one repository of a registry, with credentials and clear failures.

oras-py has the session, the credentials of docker's config.json and the requests for a
token. Its own way to ask is not taken: it waits for minutes before it fails, and keeps
one token for all scopes.
"""

import json
import logging
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

from flytune.caches.archive import COPY_BYTES
from flytune.caches.codes import Code
from flytune.caches.store import Reference
from flytune.shapes.errors import FlytuneError

if TYPE_CHECKING:
    import requests

CA_VARIABLE = "FLYTUNE_CA"
_TIMEOUT_S = (10, 60)
"""To connect, and between two bytes."""
# A registry that keeps its files on a disk, as Debian's does, answers 500 while another
# push writes the link of a tag, and 400 while one writes that of a blob.
_TRANSIENT = frozenset({429, 500, 502, 503, 504})
_TRANSIENT_PUT = _TRANSIENT | {400}
_PAUSES_S = (0.1, 0.2, 0.4, 0.8, 1.6)


class RegistryClient:
    """What asks a registry."""

    def __init__(
        self, reference: Reference, *, insecure: bool = False, ca: Path | None = None
    ) -> None:
        """Connect to nothing yet.

        Args:
            insecure: speak plain HTTP.
            ca: PEM certificates to trust instead of the system's; `$FLYTUNE_CA` where
                None, else what requests takes: `$REQUESTS_CA_BUNDLE` or its own.

        Raises:
            FlytuneError: the file of certificates is absent.
        """
        import oras.provider

        named = certificates(ca)
        # It says on stderr, as errors, what is said here in one line.
        logging.getLogger("oras").setLevel(logging.CRITICAL)
        self.reference = reference
        self._scheme = "http" if insecure else "https"
        self._verify: str | bool = str(named) if named else True
        self._oras = oras.provider.Registry(
            reference.place, insecure=insecure, tls_verify=self._verify
        )
        adapter = _adapter()
        self._oras.session.mount("http://", adapter)
        self._oras.session.mount("https://", adapter)
        name = f"{reference.place}/{reference.name}"
        if os.environ.get("DOCKER_CONFIG"):
            # oras-py looks in the home directory alone.
            self._oras.auth._auth_config = _docker_config(os.environ["DOCKER_CONFIG"])
        self._oras.auth.load_configs(self._oras.get_container(name))
        self._authorization: str | None = None

    def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        data: "bytes | Body | None" = None,
        stream: bool = False,
    ) -> "requests.Response":
        """Ask for what is below the repository, or at an absolute address.

        Raises:
            FlytuneError: the registry cannot be reached, or answers neither with what
                was asked for nor that it is absent (404).
        """
        root = f"{self._scheme}://{self.reference.place}/v2/{self.reference.name}/"
        url = urljoin(root, url)
        transient = _TRANSIENT_PUT if method == "PUT" else _TRANSIENT
        with self.clear_errors():
            response = self._send(method, url, headers, data, stream)
            challenge = response.headers.get("Www-Authenticate", "")
            if response.status_code == 401 and self._answered(challenge):
                response.close()
                response = self._send(method, url, headers, data, stream)
            for pause_s in _PAUSES_S:
                if response.status_code not in transient:
                    break
                response.close()
                time.sleep(pause_s)
                response = self._send(method, url, headers, data, stream)
        if response.status_code in (401, 403):
            raise FlytuneError(
                f"registry refuses: {self.reference}: {_said(response)}",
                hint=f"docker login {self.reference.place}",
                code=Code.REFUSED,
            )
        if not response.ok and response.status_code != 404:
            raise FlytuneError(
                f"registry failed: {self.reference}: {method}: {_said(response)}",
                code=Code.REMOTE_FAILED,
            )
        return response

    def content(self, response: "requests.Response") -> Iterator[bytes]:
        """Yield what a streamed response holds.

        Raises:
            FlytuneError: it ends early.
        """
        with self.clear_errors(), response:
            yield from response.iter_content(COPY_BYTES)

    def _send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str] | None,
        data: "bytes | Body | None",
        stream: bool,
    ) -> "requests.Response":
        sent = dict(headers or {})
        # An upload may be sent to another host, which gets no credentials.
        if self._authorization and urlsplit(url).netloc == self.reference.place:
            sent["Authorization"] = self._authorization
        answer: requests.Response = self._oras.session.request(
            method, url, headers=sent, data=data, stream=stream, verify=self._verify
        )
        return answer

    def _answered(self, challenge: str) -> bool:
        """Get what a challenge asks for; whether there is any."""
        from oras.auth.utils import parse_auth_header

        auth = self._oras.auth
        credentials = getattr(auth, "_basic_auth", None)
        scheme = challenge.partition(" ")[0].lower()
        before, self._authorization = self._authorization, None
        if scheme == "basic" and credentials:
            self._authorization = f"Basic {credentials}"
        elif scheme == "bearer":
            asked = parse_auth_header(challenge)
            if self._scheme == "https" and not str(asked.realm).startswith("https://"):
                raise FlytuneError(
                    f"registry asks in the clear: {asked.realm}",
                    code=Code.REMOTE_FAILED,
                )
            ask = auth.request_token if credentials else auth.request_anonymous_token
            token = ask(asked)
            self._authorization = f"Bearer {token}" if token else None
        return self._authorization not in (None, before)

    @contextmanager
    def clear_errors(self) -> Iterator[None]:
        """Turn what requests raises into one line.

        Raises:
            FlytuneError: in place of it.
        """
        from requests import exceptions

        place = self.reference.place
        try:
            yield
        except exceptions.SSLError as error:
            raise FlytuneError(
                f"TLS failure: {place}: {_reason(error)}",
                hint=f"--ca FILE or {CA_VARIABLE} names your own CA; a registry that "
                "speaks plain HTTP needs --insecure",
                code=Code.UNREACHABLE,
            ) from error
        except (exceptions.ChunkedEncodingError, exceptions.ReadTimeout) as error:
            raise FlytuneError(
                f"registry stopped answering: {place}: {_reason(error)}",
                hint="try again: what is whole by then is not fetched again",
                code=Code.UNREACHABLE,
            ) from error
        except exceptions.RequestException as error:
            raise FlytuneError(
                f"registry cannot be reached: {place}: {_reason(error)}",
                code=Code.UNREACHABLE,
            ) from error


def certificates(ca: Path | None) -> Path | None:
    """Return the file of certificates to trust: `ca`, else `$FLYTUNE_CA` if it is set.

    Raises:
        FlytuneError: it is absent.
    """
    named = ca or os.environ.get(CA_VARIABLE)
    if not named:
        return None
    if not Path(named).is_file():
        raise FlytuneError(f"no such file of certificates: {named}", code=Code.LOGIN)
    return Path(named)


class Body:
    """A file to send, which can be sent again."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __len__(self) -> int:
        return self._path.stat().st_size

    def __iter__(self) -> Iterator[bytes]:
        with self._path.open("rb") as file:
            while part := file.read(COPY_BYTES):
                yield part


def _docker_config(folder: str) -> dict[str, Any]:
    """Return what `docker login` left in a folder, as oras-py holds it."""
    path = Path(folder) / "config.json"
    try:
        row = json.loads(path.read_text()) if path.exists() else {}
    except (OSError, ValueError) as error:
        raise FlytuneError(
            f"cannot read docker's configuration: {path}", code=Code.LOGIN
        ) from error
    names: dict[str, Any] = {"auths": {}, "credsStore": None, "credHelpers": {}}
    return {name: row.get(name) or default for name, default in names.items()}


def _adapter() -> Any:
    """Return what sends requests, with limits of time for those of oras-py too."""
    from requests.adapters import HTTPAdapter
    from urllib3.util import Retry

    class Adapter(HTTPAdapter):  # type: ignore[misc]
        def send(self, *args: Any, **kwargs: Any) -> Any:
            kwargs["timeout"] = kwargs.get("timeout") or _TIMEOUT_S
            return super().send(*args, **kwargs)

    return Adapter(
        max_retries=Retry(total=None, connect=1, read=0, redirect=5, status=0, other=0)
    )


def _said(response: "requests.Response") -> str:
    """Return an answer's code, and the first of its errors if it names one."""
    code = f"{response.status_code} {response.reason}"
    try:
        error = response.json()["errors"][0]
        return f"{code}: {error['message']}"
    except (ValueError, LookupError, TypeError):
        return code


def _reason(error: Exception) -> str:
    """Return the innermost reason of an error of requests, which wraps several."""
    reason: BaseException = error
    while True:
        inner = getattr(reason, "reason", None) or next(
            (a for a in reason.args if isinstance(a, BaseException)), None
        )
        if not isinstance(inner, BaseException):
            break
        reason = inner
    # urllib3 begins with the connection that failed.
    text = re.sub(r"^\S*Connection\(.*?\): ", "", str(reason)).partition("\n")[0]
    return text or type(reason).__name__
