"""A bundle as a wheel, which pip installs and an entry point finds.

Source: "Binary distribution format" and "Entry points specification" of the Python
packaging user guide.
"""

import base64
import hashlib
import importlib.metadata
import re
import shutil
import zipfile
from pathlib import Path

from flytune.caches.bundle import Bundle, writing
from flytune.caches.found import BUNDLE_NAME, GROUP
from flytune.caches.manifest import Manifest
from flytune.caches.packing import check_absent, publish
from flytune.caches.scratch import beside
from flytune.caches.target import Target
from flytune.shapes.errors import FlytuneError

# Before it no ZIP archive can say when.
_EPOCH = (1980, 1, 1, 0, 0, 0)
_ABI = re.compile(r"cpython-(\d+)([a-z]*)-([a-z0-9_]+)-linux-gnu")
# A public version and a local one, as PEP 440 has them, in normal form.
_VERSION = re.compile(
    r"(\d+!)?\d+(\.\d+)*((a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?(\+[a-z0-9]+(\.[a-z0-9]+)*)?"
)
_NAME = re.compile(r"[a-z0-9]+(?:[-_.]+[a-z0-9]+)*", re.IGNORECASE)


def make_wheel(
    path: Path,
    out: Path,
    *,
    name: str | None = None,
    version: str | None = None,
) -> Path:
    """Write a bundle as a wheel and return its path; the same bundle, the same bytes.

    The bundle's own bytes are kept, its signature among them.

    Args:
        out: the directory to write into.
        name: of the distribution; after the model and the target where None.
        version: of it; after the time that the bundle was made where None.

    Raises:
        FlytuneError: the bundle is corrupt, a name or version is none, or the wheel
            exists or cannot be written.
    """
    bundle = Bundle.open(path)
    bundle.check()
    manifest = bundle.manifest
    name, version = name or _name(manifest), version or _version(manifest)
    if not _NAME.fullmatch(name):
        raise FlytuneError(f"not the name of a distribution: `{name}`")
    if not _VERSION.fullmatch(version):
        raise FlytuneError(f"not a version in PEP 440's normal form: `{version}`")
    package = re.sub(r"[-_.]+", "_", name).lower()
    tag = _tag(manifest)
    wheel = out / f"{package}-{version}-{tag}.whl"
    check_absent(wheel)
    with writing(wheel, output=True):
        out.mkdir(parents=True, exist_ok=True)
        with beside(wheel) as scratch:
            archive = _as_archive(bundle, scratch)
            info = f"{package}-{version}.dist-info"
            texts = {
                f"{package}/__init__.py": f'"""{_summary(manifest)}"""\n',
                f"{info}/METADATA": _metadata(name, version, manifest),
                f"{info}/WHEEL": _wheel_text(tag),
                f"{info}/entry_points.txt": f"[{GROUP}]\n{name} = {package}\n",
            }
            part = scratch / wheel.name
            _write(part, package, info, texts, archive)
            part.rename(wheel)
    return wheel


def _as_archive(bundle: Bundle, directory: Path) -> Path:
    archive = directory / BUNDLE_NAME
    if not bundle.path.is_dir():
        shutil.copyfile(bundle.path, archive)
    else:
        publish(bundle.path, archive)
    return archive


def _write(
    out: Path, package: str, info: str, texts: dict[str, str], archive: Path
) -> None:
    """Write a wheel; what says what is in it comes last."""
    record = []
    with zipfile.ZipFile(out, "w") as file:
        with archive.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").digest()
            size_bytes = content.tell()
            content.seek(0)
            name = f"{package}/{BUNDLE_NAME}"
            with file.open(member(name), "w", force_zip64=True) as written:
                shutil.copyfileobj(content, written)
        record.append(f"{name},sha256={_base64(digest)},{size_bytes}")
        for name, text in texts.items():
            file.writestr(member(name), text)
            record.append(record_line(name, text.encode()))
        record.append(f"{info}/RECORD,,")
        file.writestr(member(f"{info}/RECORD"), "\n".join(record) + "\n")


def member(name: str) -> zipfile.ZipInfo:
    """Return what an archive says of a file of a wheel: the same at any time."""
    info = zipfile.ZipInfo(name, _EPOCH)
    info.create_system = 3
    info.external_attr = 0o100644 << 16
    return info


def record_line(name: str, content: bytes) -> str:
    """Return a file's line in a wheel's RECORD."""
    digest = hashlib.sha256(content).digest()
    return f"{name},sha256={_base64(digest)},{len(content)}"


def _base64(digest: bytes) -> str:
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _name(manifest: Manifest) -> str:
    words = f"{manifest.model.get('name')} {Target.from_json(manifest.target).slug}"
    return "flytune-" + "-".join(re.findall(r"[a-z0-9]+", words.lower()))


def _version(manifest: Manifest) -> str:
    date, _, time = manifest.created.partition("T")
    seconds = int("".join(re.findall(r"\d\d", time)[:3]))
    return ".".join([*(str(int(part)) for part in date.split("-")), str(seconds)])


def _tag(manifest: Manifest) -> str:
    """Return the tag of the one Python and platform that the launchers load in.

    Raises:
        FlytuneError: the target names none.
    """
    abi = str(manifest.target["software"].get("python_abi"))
    found = _ABI.fullmatch(abi)
    if found is None:
        raise FlytuneError(f"no wheel is for this Python ABI: `{abi}`")
    version, flags, machine = found.groups()
    return f"cp{version}-cp{version}{flags}-linux_{machine}"


def _summary(manifest: Manifest) -> str:
    model = re.sub(r'[\\"\n]', " ", str(manifest.model.get("name")))
    slug = Target.from_json(manifest.target).slug
    return f"Prebuilt Inductor caches of {model} for {slug}"


def _metadata(name: str, version: str, manifest: Manifest) -> str:
    return (
        "Metadata-Version: 2.1\n"
        f"Name: {name}\n"
        f"Version: {version}\n"
        f"Summary: {_summary(manifest)}\n"
    )


def _wheel_text(tag: str) -> str:
    generator = importlib.metadata.version("flytune")
    return (
        "Wheel-Version: 1.0\n"
        f"Generator: flytune {generator}\n"
        "Root-Is-Purelib: false\n"
        f"Tag: {tag}\n"
    )
