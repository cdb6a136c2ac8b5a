"""A real registry on loopback: Debian's docker-registry, started by the test."""

import base64
import contextlib
import datetime
import http.server
import ipaddress
import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.x509.oid import NameOID

USER, PASSWORD = "ship", "open sesame"
CREDENTIALS = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
# bcrypt of the password, which is the one form that the program reads.
_HTPASSWD = f"{USER}:$2b$04$4HxkBqS71psSXVE8SCabGuqJGD3dmfH//8LCRsh3A953yb4H6.uQi\n"


@dataclass(frozen=True, slots=True)
class Registry:
    """A registry that runs."""

    place: str
    """Host and port."""
    storage: Path
    """Where it keeps what it was sent."""

    def blob(self, digest: str) -> Path:
        """The file of a blob, which the registry serves as it is."""
        name = digest.removeprefix("sha256:")
        blobs = self.storage / "docker/registry/v2/blobs/sha256"
        return blobs / name[:2] / name / "data"


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, PEM files."""

    certificate: Path
    key: Path


def program() -> str:
    """The registry's program: on PATH, or where `make test` puts it.

    Raises:
        RuntimeError: it is in neither; a skipped test would hide that.
    """
    own = Path(sys.prefix) / "registry" / "docker-registry"
    found = shutil.which("docker-registry") or (str(own) if own.exists() else None)
    if found is None:
        raise RuntimeError(f"no docker-registry: run ci/registry.sh {own.parent}")
    return found


@contextlib.contextmanager
def registry(
    folder: Path, *, tls: Pair | None = None, auth: Mapping[str, Any] | None = None
) -> Iterator[Registry]:
    """Run a registry that keeps all below a folder, on a free port."""
    folder.mkdir(parents=True, exist_ok=True)
    http_part: dict[str, Any] = {"addr": "127.0.0.1:0", "secret": "of a test"}
    if tls is not None:
        http_part["tls"] = {"certificate": str(tls.certificate), "key": str(tls.key)}
    config = {
        "version": 0.1,
        "storage": {"filesystem": {"rootdirectory": str(folder / "storage")}},
        "http": http_part,
        **({} if auth is None else {"auth": auth}),
    }
    # JSON is YAML.
    (folder / "config.yml").write_text(json.dumps(config))
    log = folder / "registry.log"
    with (
        log.open("wb") as written,
        subprocess.Popen(
            [program(), "serve", str(folder / "config.yml")],
            stdout=written,
            stderr=subprocess.STDOUT,
        ) as process,
    ):
        try:
            yield Registry(_address(log, process), folder / "storage")
        finally:
            process.terminate()


def _address(log: Path, process: "subprocess.Popen[bytes]") -> str:
    """Wait until it listens, and return where."""
    while process.poll() is None:
        _, found, rest = log.read_text().partition("listening on ")
        if found and '"' in rest:
            return rest.partition('"')[0].partition(",")[0]
        time.sleep(0.02)
    raise RuntimeError(log.read_text())


def htpasswd(folder: Path) -> dict[str, Any]:
    """What `registry` takes as `auth` for one user with a password."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "htpasswd").write_text(_HTPASSWD)
    return {"htpasswd": {"realm": "test", "path": str(folder / "htpasswd")}}


def log_in(folder: Path, place: str) -> Path:
    """Write what `docker login` writes, and return what DOCKER_CONFIG must name."""
    folder.mkdir(parents=True, exist_ok=True)
    row = {"auths": {place: {"auth": CREDENTIALS}}}
    (folder / "config.json").write_text(json.dumps(row))
    return folder


def authority(folder: Path) -> tuple[Path, Pair]:
    """Make a CA and a certificate of its for 127.0.0.1; return the CA's and those."""
    folder.mkdir(parents=True, exist_ok=True)
    ca_key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    ca = _certificate("own CA", "own CA", ca_key, ca_key, is_ca=True)
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    server = _certificate("registry", "own CA", key, ca_key, is_ca=False)
    paths = [folder / name for name in ("ca.pem", "server.pem", "server.key")]
    paths[0].write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(server.public_bytes(serialization.Encoding.PEM))
    paths[2].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return paths[0], Pair(paths[1], paths[2])


def _certificate(
    name: str,
    issuer: str,
    key: rsa.RSAPrivateKey,
    signer: rsa.RSAPrivateKey,
    *,
    is_ca: bool,
) -> x509.Certificate:
    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    public = signer.public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(named(name))
        .issuer_name(named(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=24))
        .add_extension(x509.BasicConstraints(is_ca, None), critical=True)
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(
            x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
        )
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(public), critical=False
        )
        .sign(signer, hashes.SHA256())
    )


@contextlib.contextmanager
def token_server(pair: Pair, ca: Path) -> Iterator[dict[str, Any]]:
    """Run what gives tokens, one a scope; yields what `registry` takes as `auth`.

    Source: the distribution project's "Token Authentication Specification".
    """

    class Tokens(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = parse_qs(urlsplit(self.path).query)
            known = self.headers["Authorization"] == f"Basic {CREDENTIALS}"
            text = {"token": _token(pair, asked)} if known else {}
            body = json.dumps(text).encode()
            self.send_response(200 if known else 401)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Tokens)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield {
            "token": {
                "realm": f"http://127.0.0.1:{server.server_port}/token",
                "service": "registry",
                "issuer": "test",
                "rootcertbundle": str(ca),
            }
        }
    finally:
        server.shutdown()
        server.server_close()


def _token(pair: Pair, asked: Mapping[str, list[str]]) -> str:
    """Sign what a challenge's scope asks for, and nothing besides."""
    now = int(time.time())
    access = []
    for scope in asked.get("scope", ()):
        kind, name, actions = scope.split(":")
        access.append({"type": kind, "name": name, "actions": actions.split(",")})
    certificate = x509.load_pem_x509_certificate(pair.certificate.read_bytes())
    der = certificate.public_bytes(serialization.Encoding.DER)
    header = {"typ": "JWT", "alg": "RS256", "x5c": [base64.b64encode(der).decode()]}
    claims = {
        **{"iss": "test", "sub": USER, "aud": asked["service"][0], "jti": "1"},
        **{"iat": now - 60, "nbf": now - 60, "exp": now + 600, "access": access},
    }
    body = ".".join(_base64(json.dumps(part).encode()) for part in (header, claims))
    key = serialization.load_pem_private_key(pair.key.read_bytes(), None)
    assert isinstance(key, rsa.RSAPrivateKey)
    signature = key.sign(body.encode(), padding.PKCS1v15(), hashes.SHA256())
    return f"{body}.{_base64(signature)}"


def _base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()
