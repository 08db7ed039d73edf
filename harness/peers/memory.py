"""The device memory that attention needs beside its tensors, where all scores would not fit."""
SIZES = dict(batch=1, heads=16, kv_heads=16, queries=1 << 17, keys=1 << 17, head_dim=64, causal=1)
SMALL = SIZES | dict(queries=256, keys=256)
IN_AND_OUT = {"forward": ("q k v", "o"), "backward": ("q k v o dout", "dq dk dv")}


def tell(torch, library, direction, report):
    """What the device's memory has less of with a pass than with its tensors alone, and what the
    step that keeps all scores would need."""
    operation = "attention" if direction == "forward" else "attention_backward"
    inputs, outputs = (names.split() for names in IN_AND_OUT[direction])
    shape = [SIZES[name] for name in ("batch", "queries", "heads", "head_dim")]
    tensors = {name: torch.randn(shape, dtype=torch.bfloat16, device="cuda")
               for name in inputs + outputs}
    # Any lse will do: the weights are smaller than right ones by a factor.
    tensors["lse"] = torch.full((shape[2], shape[1]), 64.0, device="cuda")
    pointers = {name: tensor.data_ptr() for name, tensor in tensors.items()}
    pointers["stream"] = torch.cuda.current_stream().cuda_stream

    def taken(sizes):
        """Bytes, and those of the workspace."""
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        before, _ = torch.cuda.mem_get_info()
        count = library.workspace_bytes(operation, "bf16", **sizes)
        workspace = torch.empty(count, dtype=torch.uint8, device="cuda")
        library.run(operation, "bf16", **sizes, **pointers, workspace_bytes=count,
                    **({"workspace": workspace.data_ptr()} if count else {}))
        torch.cuda.synchronize()
        after, _ = torch.cuda.mem_get_info()
        return before - after, count

    taken(SMALL)  # what the driver keeps for the kernels is there from now on
    for name in outputs:
        tensors[name].fill_(float("nan"))
    beside, workspace = taken(SIZES)
    if any(bool(tensors[name].isnan().any()) for name in outputs):
        raise RuntimeError(f"{operation} left NaN in its results")
    scores = library.workspace_bytes(operation, "bf16", step=b"scores", **SIZES)
    needed = sum(tensor.nbytes for tensor in tensors.values())
    report(f"{direction}, bf16, {', '.join(f'{name} {size}' for name, size in SIZES.items())}, by "
           f"{library.last_step}: {beside:,} bytes beside tensors of {needed:,}; its workspace has "
           f"{workspace:,}, and that of step scores would have {scores:,}")
