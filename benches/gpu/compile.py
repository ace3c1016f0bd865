#!/usr/bin/env python3
"""Compiles the kernels for LibTorch with NVRTC, as their first launch does. Needs no GPU.

    torch-venv/bin/python benches/gpu/compile.py

The NVRTC library comes from PyTorch's CUDA wheel.
"""

import ctypes
import sys
from pathlib import Path

import torch

SOURCE = Path(__file__).resolve().parents[2] / "crates/kernels/src/cuda/kernels.cu"


def main():
    packages = Path(torch.__file__).resolve().parents[1]
    found = sorted(packages.glob("nvidia/*/lib/libnvrtc.so.*"))
    found = [path for path in found if "alt" not in path.name]
    if not found:
        sys.exit(f"there is no NVRTC in {packages}/nvidia; install a torch with CUDA")
    nvrtc = ctypes.CDLL(str(found[0]), mode=ctypes.RTLD_GLOBAL)
    for target in ("sm_80", "sm_90"):
        program, size = ctypes.c_void_p(), ctypes.c_size_t()
        nvrtc.nvrtcCreateProgram(ctypes.byref(program), SOURCE.read_bytes(), b"kernels.cu", 0, None, None)
        options = (ctypes.c_char_p * 2)(f"--gpu-architecture={target}".encode(), b"--std=c++17")
        status = nvrtc.nvrtcCompileProgram(program, 2, options)
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        if status != 0:
            sys.exit(f"{target}: {log.value.decode()}")
        nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
        print(f"{target}: {size.value} bytes with {found[0].name}", log.value.decode())


if __name__ == "__main__":
    main()
