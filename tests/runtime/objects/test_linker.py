"""Linking: every kind of reference that LLVM writes, and objects that are none."""

from __future__ import annotations

import ctypes
import itertools
import random
from typing import Any

import pytest

from stagejit.runtime.objects import code_memory, elf, linker
from stagejit.runtime.objects.code_memory import PAGE_NBYTES, CodeMemory
from stagejit.runtime.objects.elf import ObjectError
from stagejit.runtime.objects.engine import _compile
from stagejit.runtime.objects.linker import Image, libc_address, link

ALL_KINDS = """
declare i64 @lk_near(i64)
declare i64 @labs(i64)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
@lk_external = external global i64
@lk_count = global i64 5
@lk_zero = global [3 x i64] zeroinitializer, align 64
@lk_pairs = private constant [4 x double] [double 1.5, double 2.5, double 3.5, double 4.5], align 32
@lk_texts = private constant [2 x ptr] [ptr @lk_count, ptr @lk_zero]
define i64 @lk_all(i64 %k) {
entry:
  %buffer = alloca [900 x i8], align 64
  call void @llvm.memset.p0.i64(ptr %buffer, i8 1, i64 %k, i1 false)
  %first = load i8, ptr %buffer
  %one = zext i8 %first to i64
  %count = load i64, ptr @lk_count
  %count.next = add i64 %count, 1
  store i64 %count.next, ptr @lk_count
  %place = getelementptr [2 x ptr], ptr @lk_texts, i64 0, i64 %one
  %zero.at = load ptr, ptr %place
  %zero = load i64, ptr %zero.at
  %pair.at = getelementptr double, ptr @lk_pairs, i64 %k
  %pair = load double, ptr %pair.at
  %scaled = fmul double %pair, 1.000000e+03
  %pair.i = fptosi double %scaled to i64
  %external = load i64, ptr @lk_external
  %near = call i64 @lk_near(i64 %k)
  %minus = sub i64 0, %near
  %abs = call i64 @labs(i64 %minus)
  %s0 = add i64 %count, %zero
  %s1 = add i64 %s0, %pair.i
  %s2 = add i64 %s1, %external
  %s3 = add i64 %s2, %abs
  ret i64 %s3
}
"""
NEAR = """
define i64 @lk_near(i64 %k) {
entry:
  switch i64 %k, label %other [ i64 1, label %a
    i64 2, label %b
    i64 3, label %c
    i64 4, label %d
    i64 5, label %e ]
a:
  %va = call i64 @lk_other(i64 1)
  ret i64 %va
b:
  ret i64 200
c:
  %vc = call i64 @lk_other(i64 3)
  %wc = mul i64 %vc, %vc
  ret i64 %wc
d:
  ret i64 7
e:
  ret i64 -3
other:
  ret i64 0
}
define i64 @lk_other(i64 %k) noinline {
  %r = mul i64 %k, 100
  ret i64 %r
}
"""


def call(address: int, *arguments: int) -> int:
    kinds = [ctypes.c_int64] * len(arguments)
    return int(ctypes.CFUNCTYPE(ctypes.c_int64, *kinds)(address)(*arguments))


@pytest.fixture(params=["ours", "llvm"])
def linked(request: Any) -> Any:
    """Both linkers, and the images they made, freed at the end."""
    function = link if request.param == "ours" else linker._link_by_llvm
    made: list[Image] = []

    def run(*args: Any) -> list[Image]:
        images = function(*args)
        made.extend(images)
        return list(images)

    yield run
    for image in made:
        image.free()


def test_every_kind_of_reference(linked: Any) -> None:
    external = ctypes.c_int64(10_000)
    imports = {"labs": libc_address("labs"), "lk_external": ctypes.addressof(external)}
    imports |= linked([(_compile(NEAR), ("lk_near",))], {})[0].addresses
    images = linked([(_compile(ALL_KINDS), ("lk_all", "lk_count"))], imports)
    address = images[0].addresses["lk_all"]
    assert call(address, 2) == 5 + 0 + 3500 + 10_000 + 200
    assert call(address, 3) == 6 + 0 + 4500 + 10_000 + 90_000
    external.value = 0
    assert call(address, 1) == 7 + 0 + 2500 + 100
    assert ctypes.c_int64.from_address(images[0].addresses["lk_count"]).value == 8


def test_a_missing_symbol_is_named(linked: Any) -> None:
    with pytest.raises(ObjectError, match="lk_"):
        linked([(_compile(ALL_KINDS), ("lk_all",))], {})
    with pytest.raises(ObjectError, match="lk_absent"):
        linked([(_compile(NEAR), ("lk_absent",))], {})


@pytest.mark.parametrize("alignment", [64, 128])
def test_data_is_aligned_or_refused(alignment: int) -> None:
    """Blocks of data begin at lines."""
    data = f"@lk_data = global [3 x i64] zeroinitializer, align {alignment}"
    objects = [(_compile(data), ("lk_data",))]
    if alignment > 64:
        with pytest.raises(ObjectError, match="aligned to 128"):
            link(objects, {})
        return
    images = [link(objects, {})[0] for _ in range(3)]
    assert all(image.addresses["lk_data"] % alignment == 0 for image in images)
    for image in images:
        image.free()


def test_failing_leaves_no_memory_behind() -> None:
    before = code_memory.code_memory().used_nbytes
    with pytest.raises(ObjectError):
        link([(_compile(NEAR), ("lk_near",)), (_compile(ALL_KINDS), ("lk_all",))], {})
    with pytest.raises(ObjectError):
        link([(_compile(NEAR), ("lk_near",)), (b"no object", ())], {})
    assert code_memory.code_memory().used_nbytes == before


def test_damaged_objects_are_refused_or_linked_but_never_crash() -> None:
    """Whatever stands in the file: an answer or an ObjectError, quickly."""
    good, source = _compile(ALL_KINDS), random.Random(0)
    imports = {"labs": 1 << 40, "lk_external": 1 << 41, "lk_near": 1 << 42}
    refused = 0
    for _ in range(3000):
        data = bytearray(good)
        for _ in range(source.choice((1, 1, 2, 8))):
            data[source.randrange(len(data))] = source.choice((0, 255, source.randrange(256)))
        if source.random() < 0.2:
            del data[source.randrange(len(data)) :]
        try:
            (image,) = link([(bytes(data), ())], imports)
            image.free()
        except (ObjectError, MemoryError):
            refused += 1
    assert refused > 300
    elf.parse(good)


def test_blocks_do_not_overlap_and_are_reused() -> None:
    memory, source = CodeMemory(), random.Random(1)
    held: list[Any] = []
    for _ in range(400):
        if held and source.random() < 0.45:
            memory.free(held.pop(source.randrange(len(held))))
        else:
            held.append(memory.allocate(source.randrange(1, 40_000), source.choice((0, 8, 200))))
        spans = sorted((b.code, b.code + b.code_nbytes) for b in held)
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))
        data = sorted((b.data, b.data + b.data_nbytes) for b in held if b.data_nbytes)
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(data))
        assert memory.used_nbytes == sum(b.code_nbytes for b in held)
    for block in held:
        memory.free(block)
    assert memory.used_nbytes == 0
    assert memory.nbytes <= 4 << 20  # one chunk stays


def test_a_block_larger_than_a_chunk() -> None:
    memory = CodeMemory()
    block = memory.allocate(9 << 20, 100)
    ctypes.memset(block.code, 1, block.code_nbytes)
    block.seal()
    assert ctypes.string_at(block.code + (9 << 20) - 1, 1) == b"\x01"
    assert block.code % PAGE_NBYTES == 0
    memory.free(block)


def test_too_much_data_is_refused() -> None:
    with pytest.raises(MemoryError, match="too many"):
        CodeMemory().allocate(1, 1 << 20)
