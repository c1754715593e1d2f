"""Products of warpgroups as CUDA C++: the simulator's values under emulation, which reads shared
memory through their descriptors, and code of sm_90a without spills."""

from __future__ import annotations

import re

import numpy as np
import pytest

from stagejit.codegen.cuda.text.printer import cuda_source
from tests.codegen.ir.grid.test_warpgroups import CASES, Case, arrays_of, product, wanted_of
from tests.cuda.emulation.checked import checked
from tests.cuda.emulation.emulated import NAME, ORDERS, EmulationError, launch


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_product(case: Case) -> None:
    x, y, z = arrays_of(case)
    checked(product(case), [x, y, z], blocks=[1])
    np.testing.assert_allclose(z, wanted_of(x, y), rtol=1e-5, atol=1e-5)


SMALL = Case(64, 32, by_steps=(True, False))
# What is replaced in the text, by what, and what is said; nothing: anything, or wrong numbers.
WRONG = {
    "no wait": ("  wgmma_wait_0_32(sums);", "", "a product that nobody waits for"),
    "no commit": ("  wgmma_commit();", "", "a product that nobody waits for"),
    "no fence": ("  wgmma_fence_32(sums);", "", r"without a wgmma\.fence"),
    "no fence of proxies": ("  proxy_fence();", "", ""),
    "a fence of proxies too early": (" float sums[32];", " float sums[32]; proxy_fence();", ""),
    "no barrier": ("  __syncthreads();", "", ""),
    "no swizzle": ("<< 62", "* 0", ""),
    "another swizzle": ("1ull << 62", "1ull << 63", ""),
    "another stride": ("atoms >> 4 << 32", "atoms >> 3 << 32", ""),
    "strips that overlap": ("strips >> 4 << 16", "strips >> 4 << 15", ""),
    "another start": ("0x3ffff) >> 4", "0x3ffff) + 32 >> 4", ""),
    "an unknown bit": ("1ull << 62", "1ull << 49 | 1ull << 62", "bits that are not known"),
    "operands turned": ("a, b, 0, 1,", "a, b, 1, 0,", ""),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_goes_wrong_is_found(name: str) -> None:
    """Wrong numbers, or a fault, in some order of the threads."""
    old, new, message = WRONG[name]
    case = SMALL if name != "strips that overlap" else Case(128, 16, by_steps=(True, False))
    function, (x, y, z) = product(case), arrays_of(case)
    source = cuda_source(function, NAME)
    assert old in source
    text = source.replace(old, new)
    if name == "a fence of proxies too early":
        text = source.replace("  proxy_fence();", "").replace(old, new)
    wrong, said = 0, list[str]()
    for order in ORDERS:
        z[...] = 0
        try:
            launch(text, function.threads, [x, y, z], [0, 0], [1], order)
        except EmulationError as error:
            said.append(str(error))
        wrong += not np.allclose(z, wanted_of(x, y), rtol=1e-4, atol=1e-4)
    assert wrong
    assert all(re.search(message, text) for text in said)
    assert not message or said


def test_nobody_reads_sums_too_early() -> None:
    """They are NaN until they have been waited for."""
    function, (x, y, z) = product(SMALL), arrays_of(SMALL)
    source = cuda_source(function, NAME)
    first, *between, last = source.split("  wgmma_wait_0_32(sums);")
    text = (
        "  wgmma_wait_0_32(sums);".join([first, *between])
        + last[:-2]
        + ("  wgmma_wait_0_32(sums);\n}\n")
    )
    launch(text, function.threads, [x, y, z], [0, 0], [1])
    assert np.isnan(z).all()
