"""The stable codes of what keeps a bundle from being used, and what to do about each.

A code is never given another meaning; one that is no longer met is left out.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple


class Code(StrEnum):
    """Each miss, refusal and damage; a closed set.

    FT1: the bundle is for something else. FT2: it breaks a rule. FT3: the place to
    install into. FT4: installed files are damaged. FT5: switched off. FT6: who signed
    it. FT7: the host, as `flytune doctor` sees it. FT8: where bundles are kept, and
    bundles together. FT9: flytune itself.
    """

    HARDWARE = "FT101"
    SOFTWARE = "FT102"
    COMPILED_ONLY = "FT103"
    STAND_IN = "FT104"
    SETTING = "FT105"
    TOO_LATE = "FT106"
    UNWATCHABLE = "FT107"
    WITHOUT_FLYDSL = "FT108"
    ENGINE_MISS = "FT109"
    RANKS = "FT110"

    UNREADABLE = "FT201"
    MANIFEST = "FT202"
    NEWER = "FT203"
    NOT_ZSTD = "FT204"
    TRUNCATED = "FT205"
    TRAILING = "FT206"
    HEADER = "FT207"
    LINK = "FT208"
    DEVICE = "FT209"
    FOLDER = "FT210"
    KIND = "FT211"
    FIRST = "FT212"
    TWICE = "FT213"
    UNLISTED = "FT214"
    MISSING = "FT215"
    SIZE = "FT216"
    DIGEST = "FT217"
    ABSOLUTE = "FT218"
    CLIMBS = "FT219"
    NAME = "FT220"
    POLICY = "FT221"

    DISK_FULL = "FT301"
    UNWRITABLE = "FT302"
    OCCUPIED = "FT303"
    NOT_PRIVATE = "FT304"
    NO_EXEC = "FT305"
    NOT_INSTALLED = "FT306"
    AMBIGUOUS = "FT307"
    NO_PACKAGE = "FT308"

    MENDED = "FT401"
    SET_ASIDE = "FT402"
    NOT_SET_ASIDE = "FT403"
    BOOKKEEPING = "FT404"
    ENVIRONMENT = "FT405"

    DISABLED = "FT501"

    PIN = "FT601"
    SECOND = "FT602"
    SIGNATURE_SIZE = "FT603"
    ENVELOPE = "FT604"
    PAYLOAD_TYPE = "FT605"
    BASE64 = "FT606"
    SIGNERS = "FT607"
    FORGED = "FT608"
    FOREIGN = "FT609"
    UNTRUSTED = "FT610"
    KEYS = "FT611"

    TORCH = "FT701"
    PYTHON = "FT702"
    MASKS = "FT703"
    MASKS_UNCLEAR = "FT704"
    AMDSMI = "FT705"
    SMALL_GPU = "FT706"
    NETWORK = "FT707"
    SHARED_MEMORY = "FT708"
    FLYDSL = "FT709"
    BUSY = "FT710"
    COMPILER = "FT711"
    LITTLE_DISK = "FT712"
    NO_DEVICE = "FT713"

    REFERENCE = "FT801"
    ABSENT = "FT802"
    UNFIT = "FT803"
    SEVERAL = "FT804"
    REFUSED = "FT805"
    UNREACHABLE = "FT806"
    REMOTE_FAILED = "FT807"
    REMOTE_DAMAGED = "FT808"
    OTHER_TAG = "FT809"
    CONTENDED = "FT810"
    LOGIN = "FT811"
    UNMERGED = "FT812"

    INTERNAL = "FT901"


class Explained(NamedTuple):
    """What a code means and what to do."""

    meaning: str
    action: str


_AGAIN = "fetch or build the bundle again; do not use it"
_BUILD = "build on such a host, or serve without it"
EXPLAINED: Mapping[Code, Explained] = {
    Code.HARDWARE: Explained("the bundle is for other hardware", _BUILD),
    Code.SOFTWARE: Explained(
        "the bundle is for another torch, Triton, Python or compiler",
        "serve with the software that the line names, or build with this one",
    ),
    Code.COMPILED_ONLY: Explained(
        "the bundle holds kernels for another build, and nothing to serve from",
        "give it to `flytune build --from` where the device is",
    ),
    Code.STAND_IN: Explained(
        "the bundle was not built by the software that serves",
        "build it in the serving environment, or with `--target-env`",
    ),
    Code.SETTING: Explained(
        "torch does not keep a setting of the policy",
        "remove what sets it (a variable, or the program), or build with this torch",
    ),
    Code.TOO_LATE: Explained(
        "torch._inductor was imported before the bundle was installed",
        "call flytune.caches.install before the first import of torch",
    ),
    Code.UNWATCHABLE: Explained(
        "another import hook keeps torch's modules from being watched",
        "leave that hook out, or install after it",
    ),
    Code.WITHOUT_FLYDSL: Explained(
        "FlyDSL is not here as it was at the build, and is served without",
        "install the flydsl that the line names, or leave it so",
    ),
    Code.ENGINE_MISS: Explained(
        "the engine asks for what the bundle does not hold, and compiles it",
        "start it as the bundle was baked, or bake one for how it is started",
    ),
    Code.RANKS: Explained(
        "the launch has another number of ranks than the bundle was baked with",
        "launch as many, or build with the command that is launched",
    ),
    Code.UNREADABLE: Explained(
        "there is no bundle, or it cannot be read", "check its path and its mode"
    ),
    Code.MANIFEST: Explained("the manifest breaks a rule of the format", _AGAIN),
    Code.NEWER: Explained(
        "the manifest has a newer schema than this flytune reads",
        "upgrade flytune, or build the bundle with this one",
    ),
    Code.NOT_ZSTD: Explained("the archive is not zstd, or is corrupt", _AGAIN),
    Code.TRUNCATED: Explained("the archive ends early", _AGAIN),
    Code.TRAILING: Explained("the archive has bytes after its end", _AGAIN),
    Code.HEADER: Explained("the archive has a bad member header", _AGAIN),
    Code.LINK: Explained("the bundle holds a link", _AGAIN),
    Code.DEVICE: Explained("the bundle holds a device or pipe", _AGAIN),
    Code.FOLDER: Explained("the archive holds a folder as a member", _AGAIN),
    Code.KIND: Explained("the archive holds a member of unknown kind", _AGAIN),
    Code.FIRST: Explained("the archive does not start with its manifest", _AGAIN),
    Code.TWICE: Explained("the archive holds a member twice", _AGAIN),
    Code.UNLISTED: Explained("a file is not in the manifest", _AGAIN),
    Code.MISSING: Explained("a file of the manifest is absent", _AGAIN),
    Code.SIZE: Explained("a file has another size than the manifest says", _AGAIN),
    Code.DIGEST: Explained("a file has another digest than the manifest says", _AGAIN),
    Code.ABSOLUTE: Explained("a member has an absolute path", _AGAIN),
    Code.CLIMBS: Explained("a member's path climbs out with `..`", _AGAIN),
    Code.NAME: Explained("a member's path is no plain file name", _AGAIN),
    Code.POLICY: Explained("the serving policy is malformed", _AGAIN),
    Code.DISK_FULL: Explained(
        "the disk is full", "free some, `flytune gc`, or move FLYTUNE_HOME"
    ),
    Code.UNWRITABLE: Explained(
        "the place to install into, or an output's, cannot be written",
        "choose another path, or set FLYTUNE_HOME to a directory that can",
    ),
    Code.OCCUPIED: Explained(
        "the directory holds something else", "remove it, or install into another"
    ),
    Code.NOT_PRIVATE: Explained(
        "other users can write where caches, which are code, lie",
        "make it your own, mode 0700, or set FLYTUNE_HOME",
    ),
    Code.NO_EXEC: Explained(
        "the caches lie on a mount without exec: no library loads from there",
        "set FLYTUNE_HOME to a mount with exec",
    ),
    Code.NOT_INSTALLED: Explained(
        "no bundle of that digest is installed", "see `flytune installed`"
    ),
    Code.AMBIGUOUS: Explained(
        "several installed bundles have that digest's start", "give more digits"
    ),
    Code.NO_PACKAGE: Explained(
        "no package of the environment brings a bundle for this host, or several do",
        "pip install what `flytune wheel` made for it, or name the model",
    ),
    Code.MENDED: Explained(
        "installed files were damaged, and made anew from the bundle",
        "nothing now; where it comes again, look at the disk",
    ),
    Code.SET_ASIDE: Explained(
        "installed files were damaged and are set aside; what they held is compiled",
        "install from the bundle again, which mends them",
    ),
    Code.NOT_SET_ASIDE: Explained(
        "installed files are damaged and cannot be set aside",
        "remove the directory as its owner, and install again",
    ),
    Code.BOOKKEEPING: Explained(
        "flytune's own files beside the caches are absent or damaged",
        "install from the bundle again, which mends them",
    ),
    Code.ENVIRONMENT: Explained(
        "the variable by which a parent hands a bundle on is damaged",
        "leave FLYTUNE_CHANGES as `flytune` sets it",
    ),
    Code.DISABLED: Explained(
        "FLYTUNE_DISABLE is set", "unset it to serve from the bundle"
    ),
    Code.PIN: Explained(
        "the bundle has another digest than the one that it is pinned to",
        "fetch the bundle that was meant, or correct the digest",
    ),
    Code.SECOND: Explained("the signature is not the second file", _AGAIN),
    Code.SIGNATURE_SIZE: Explained("the signature is too large", _AGAIN),
    Code.ENVELOPE: Explained("the signature is malformed", _AGAIN),
    Code.PAYLOAD_TYPE: Explained("the signature is over something else", _AGAIN),
    Code.BASE64: Explained("the signature is not in base64", _AGAIN),
    Code.SIGNERS: Explained("the signature has too many signers", _AGAIN),
    Code.FORGED: Explained("a trusted key's signature does not verify", _AGAIN),
    Code.FOREIGN: Explained("the signature is over another manifest", _AGAIN),
    Code.UNTRUSTED: Explained(
        "no key that is trusted here signed the bundle, or one that is revoked did",
        "trust its signer, pin it by a digest that you know, or --allow-unsigned",
    ),
    Code.KEYS: Explained(
        "keys that are to be trusted cannot be read",
        "look at the file that the line names",
    ),
    Code.TORCH: Explained(
        "torch is absent, or not one that is supported",
        "install a torch that the line names",
    ),
    Code.PYTHON: Explained(
        "this Python is not one that is supported",
        "use Python 3.11 or 3.12; torch 2.11 to 2.15 is built for both",
    ),
    Code.MASKS: Explained(
        "the variables that hide devices contradict each other", "set one of them"
    ),
    Code.MASKS_UNCLEAR: Explained(
        "variables that hide devices filter one after the other", "set one of them"
    ),
    Code.AMDSMI: Explained(
        "an AMD GPU tells nothing of its clocks and heat",
        "install amdsmi, which comes with ROCm",
    ),
    Code.SMALL_GPU: Explained(
        "Inductor does not tune on a GPU with so few multiprocessors",
        "use a larger GPU or a larger MIG slice",
    ),
    Code.NETWORK: Explained(
        "caches or scratch would lie on a network file system",
        "set FLYTUNE_HOME, TMPDIR or --work to a local disk",
    ),
    Code.SHARED_MEMORY: Explained(
        "/dev/shm is too small for Ray's object store",
        "give the container more: --shm-size, or an emptyDir of medium Memory",
    ),
    Code.FLYDSL: Explained(
        "FlyDSL is absent where torch would use it, or a version that torch refuses",
        "install the version that the line names, or leave its kernels out",
    ),
    Code.BUSY: Explained(
        "others use the GPU, which makes times wrong", "stop them, or time elsewhere"
    ),
    Code.COMPILER: Explained(
        "there is no C++ compiler",
        "install g++; what was baked with one then hits, and a build works",
    ),
    Code.LITTLE_DISK: Explained("there is little room on a disk", "free some"),
    Code.NO_DEVICE: Explained(
        "a GPU is here that torch cannot use",
        "look at the driver and at the build of torch",
    ),
    Code.REFERENCE: Explained(
        "what is named is no place for a bundle, or is pinned and to be pushed to",
        "name REGISTRY/REPOSITORY[:TAG], oci:DIR[:TAG] or hf://ORG/REPO",
    ),
    Code.ABSENT: Explained(
        "the registry, folder or hub lacks the tag, or a part of what it names",
        "check the reference, or push the bundle again",
    ),
    Code.UNFIT: Explained(
        "no bundle of the tag is what was asked for, or for this host",
        "ask for one that the line names, or build and push one",
    ),
    Code.SEVERAL: Explained(
        "several bundles of the tag are what was asked for",
        "choose by --for-host, --target, --tp, --ep or --engine",
    ),
    Code.REFUSED: Explained(
        "the registry or the hub does not let you",
        "log in, `docker login` or `hf auth login`, or ask for the right to",
    ),
    Code.UNREACHABLE: Explained(
        "the registry or the hub does not answer, or not by TLS that is trusted",
        "check name, network, --ca and --insecure, and try again",
    ),
    Code.REMOTE_FAILED: Explained(
        "the registry answers with an error of its own",
        "try again; where it stays so, ask whoever runs it",
    ),
    Code.REMOTE_DAMAGED: Explained(
        "what is kept there is damaged, or no bundle of flytune's",
        "fetch it again; where it stays so, push the bundle again",
    ),
    Code.OTHER_TAG: Explained(
        "the tag holds something else than bundles of this model",
        "push to a tag or a repository of its own",
    ),
    Code.CONTENDED: Explained("other pushes change the tag all the time", "push again"),
    Code.LOGIN: Explained(
        "the file of certificates, or docker's of logins, cannot be read",
        "check the path that the line names",
    ),
    Code.UNMERGED: Explained(
        "the bundles differ in more than lists and sizes, and cannot be one",
        "push them to one tag, or build one with the token counts of all",
    ),
    Code.INTERNAL: Explained(
        "flytune failed in a way that it does not know", "report the line"
    ),
}


def markdown() -> str:
    """Return the table as `caches/README.md` has it."""
    rows = [f"| {code} | {text} | {action} |" for code, (text, action) in _rows()]
    return "\n".join(["| code | means | do |", "| --- | --- | --- |", *rows])


def _rows() -> list[tuple[Code, Explained]]:
    return [(code, EXPLAINED[code]) for code in Code]
