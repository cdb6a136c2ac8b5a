import pytest

from flytune.caches.code_object import arch_of, code_objects, lds_bytes

LDS = b".group_segment_fixed_size"


def test_code_object_is_read_out_of_mlirs_text() -> None:
    mlir = r'gpu.binary @k [#gpu.object<#t, bin = "\7FELF\00\22a\\b\"c\0A">]'
    assert code_objects(mlir) == (b'\x7fELF\x00"a\\b"c\n',)
    assert code_objects(mlir * 2) == code_objects(mlir) * 2


@pytest.mark.parametrize("mlir", ["", "module {}", 'bin = "not an ELF file"'])
def test_what_holds_no_code_object_is_refused(mlir: str) -> None:
    with pytest.raises(ValueError, match="code object"):
        code_objects(mlir)


@pytest.mark.parametrize(
    ("encoded", "size"),
    [
        (b"\x00", 0),
        (b"\x7f", 127),
        (b"\xcc\x80", 128),
        (b"\xcd\x80\x00", 32768),
        (b"\xce\x00\x02\x80\x00", 163840),
    ],
)
def test_lds_is_read_from_the_note(encoded: bytes, size: int) -> None:
    assert lds_bytes(b"head" + LDS + encoded + b"\xa4tail....") == size


def test_kernel_that_takes_the_most_decides() -> None:
    note = LDS + b"\x10" + b"padding.." + LDS + b"\xcd\x40\x00" + b"padding.."
    assert lds_bytes(note) == 16384


def test_no_kernel_is_no_size() -> None:
    with pytest.raises(ValueError, match="describes no kernel"):
        lds_bytes(b"\x7fELF")


def test_architecture_is_read_from_the_target() -> None:
    assert arch_of(b"..amdgcn-amd-amdhsa--gfx950..") == "gfx950"
    assert arch_of(b"..amdgcn-amd-amdhsa--gfx90a:xnack-") == "gfx90a"
    assert arch_of(b"amdgcn-amd-amdhsa-unknown-gfx950\xae") == "gfx950"
    assert arch_of(b"..") == ""
