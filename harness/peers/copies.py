"""Copies of as many bytes as a case moves, half read and half written: the ceiling of a kernel
that is limited by memory. The C++ benchmark has a copy kernel of its own beside cudaMemcpyAsync;
through PyTorch there are copy_ and cudaMemcpyAsync."""
import ctypes
import pathlib

DEVICE_TO_DEVICE = 3


def cuda_runtime():
    """The CUDA runtime that PyTorch has loaded; None if it is not found."""
    try:
        lines = pathlib.Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    paths = {line.split(maxsplit=5)[5] for line in lines if "/libcudart.so" in line}
    return ctypes.CDLL(min(paths)) if paths else None


def works(torch, bytes_moved):
    """By name. They keep their memory: random bits, since zeros would cost less power."""
    count = max(1, bytes_moved // 2 // 8)
    source = torch.empty(count, dtype=torch.int64, device="cuda").random_()
    target = torch.empty_like(source)
    found = {"copy_": lambda: target.copy_(source)}
    runtime = cuda_runtime()
    if runtime:
        copy = runtime.cudaMemcpyAsync
        copy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int,
                         ctypes.c_void_p]
        arguments = (target.data_ptr(), source.data_ptr(), 8 * count, DEVICE_TO_DEVICE,
                     torch.cuda.current_stream().cuda_stream)

        def run(_keep=(source, target)):
            if status := copy(*arguments):
                raise RuntimeError(f"cudaMemcpyAsync: error {status}")
        found["cudaMemcpyAsync"] = run
    for name, run in found.items():
        target.zero_()
        run()
        if not torch.equal(source, target):
            raise RuntimeError(f"{name} did not copy")
    return found
