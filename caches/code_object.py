"""What a compiled AMD kernel says of itself: its target and the LDS that it takes.

FlyDSL keeps a kernel as MLIR text, in which the code object (an ELF file) is a string
attribute; AMD's compilers describe the kernels in a note of it, as MessagePack
(llvm.org/docs/AMDGPUUsage.html, "Code Object Metadata").
"""

import re
from collections.abc import Iterator

_ELF = b"\x7fELF"
_BINARY = re.compile(r'bin = "((?:[^"\\]|\\.)*)"')
# MLIR writes a byte that is not printable as a backslash and two hexadecimal digits.
_ESCAPE = re.compile(rb'\\(["\\]|[0-9A-Fa-f]{2})')
_LDS = b".group_segment_fixed_size"
_TRIPLE = re.compile(rb"amdgcn-amd-amdhsa-\w*-(gfx[0-9a-f]+)")
# MessagePack's unsigned integers beyond 127: their tag, and the bytes that follow.
_WIDTHS = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}


def code_objects(mlir: str) -> tuple[bytes, ...]:
    """Return the code objects in the text of a compiled MLIR module.

    Raises:
        ValueError: it holds none, or something that is no ELF file.
    """
    found = tuple(_unescaped(match[1]) for match in _BINARY.finditer(mlir))
    if not found:
        raise ValueError("no code object in it")
    if not all(one.startswith(_ELF) for one in found):
        raise ValueError("its code object is no ELF file")
    return found


def lds_bytes(code_object: bytes) -> int:
    """Return the LDS that a workgroup takes, of the kernel that takes the most.

    Raises:
        ValueError: it describes no kernel.
    """
    sizes = tuple(_numbers_after(code_object, _LDS))
    if not sizes:
        raise ValueError("its code object describes no kernel")
    return max(sizes)


def arch_of(code_object: bytes) -> str:
    """Return the device's architecture, such as "gfx950"; nothing where none is."""
    match = _TRIPLE.search(code_object)
    return match[1].decode() if match else ""


def _unescaped(text: str) -> bytes:
    def byte(match: re.Match[bytes]) -> bytes:
        word = match[1]
        return word if len(word) == 1 else bytes.fromhex(word.decode())

    return _ESCAPE.sub(byte, text.encode("latin1"))


def _numbers_after(code_object: bytes, name: bytes) -> Iterator[int]:
    """Yield the value of each entry of that name in the MessagePack map."""
    for match in re.finditer(re.escape(name), code_object):
        tag, *rest = code_object[match.end() : match.end() + 9]
        if tag < 0x80:
            yield tag
        elif tag in _WIDTHS:
            yield int.from_bytes(bytes(rest[: _WIDTHS[tag]]), "big")
