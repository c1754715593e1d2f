"""GPUs of this machine, through PyCUDA, or an error that says what is missing.

Input: the number of a GPU. Output: PyCUDA's module, its object for the GPU. Invariant: nothing of
CUDA is loaded before somebody asks.
"""

from __future__ import annotations

from typing import Any

from stagejit.errors import NoDriverError

_OLDEST = (8, 0)  # whose tensor cores multiply what kernels give them
_WITH_OWN_FEATURES = (9,)  # major versions whose code is compiled for them alone, as sm_90a
_INSTALL = "pip install 'stagejit[cuda]'"
_EMULATED = "a program runs without a GPU, slowly, with backend='cuda-emulated'"


def arch_of(major: int, minor: int) -> str:
    """(9, 0) -> sm_90a."""
    return f"sm_{major}{minor}" + ("a" if major in _WITH_OWN_FEATURES else "")


def imported() -> Any:
    """PyCUDA's module, with the driver started."""
    try:
        import pycuda.driver as cuda
    except ModuleNotFoundError as error:
        raise NoDriverError(
            f"backend='cuda' needs PyCUDA, and there is none ({error})", next_step=_INSTALL
        ) from error
    except ImportError as error:
        raise NoDriverError(
            f"PyCUDA cannot be loaded: {error}",
            next_step="install NVIDIA's driver, and a PyCUDA that was built with a CUDA that the "
            f"driver knows; {_EMULATED}",
        ) from error
    try:
        cuda.init()
    except cuda.Error as error:
        raise NoDriverError(
            f"there is no GPU to use: {error}",
            next_step=f"see what `nvidia-smi` and CUDA_VISIBLE_DEVICES say; {_EMULATED}",
        ) from error
    return cuda


def gpu(ordinal: int) -> Any:
    """PyCUDA's object for it."""
    cuda = imported()
    count = cuda.Device.count()
    if not 0 <= ordinal < count:
        raise NoDriverError(
            f"there is no GPU {ordinal}",
            next_step=f"choose one of 0 to {count - 1}" if count else _EMULATED,
        )
    found = cuda.Device(ordinal)
    require_recent(str(found.name()), *found.compute_capability())
    return found


def require_recent(name: str, major: int, minor: int) -> None:
    """That a GPU has all instructions that kernels consist of."""
    if (major, minor) < _OLDEST:
        raise NoDriverError(
            f"{name} is too old: kernels need {arch_of(*_OLDEST)} or newer, and it is "
            f"{arch_of(major, minor)}",
            next_step=f"use an A100 or something newer; {_EMULATED}",
        )


def check_versions(driver: tuple[int, int], compiler: tuple[int, int]) -> None:
    """A driver loads machine code of its own major version of CUDA and of older ones."""
    if driver[0] < compiler[0]:
        raise NoDriverError(
            f"the driver knows CUDA {driver[0]}.{driver[1]}, and NVRTC is of CUDA "
            f"{compiler[0]}.{compiler[1]}, whose machine code it cannot load",
            next_step="install a newer driver; or, in the place of nvidia-cuda-nvrtc, one as old: "
            f"pip install nvidia-cuda-nvrtc-cu{driver[0]}",
        )
